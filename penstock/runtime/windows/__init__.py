"""The windows of a window operator: their content, and when they fire."""

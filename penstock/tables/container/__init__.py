"""The container's part of pushed tables: loads versions, and gives attempts views of them."""

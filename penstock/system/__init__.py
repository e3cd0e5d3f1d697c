"""Systems: where streams are read and written."""

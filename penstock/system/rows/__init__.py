"""Rows of data files: what the systems of files and of tables share. It knows neither of them.

Only those systems may import it.
"""

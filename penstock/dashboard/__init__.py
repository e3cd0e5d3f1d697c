"""A page on which people look at jobs. It is built on `penstock.admin` alone: it knows what a program could ask.

Only `cli` may import it.
"""

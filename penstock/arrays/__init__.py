"""Many keys, values or rows at once, as arrays, and their forms as bytes and JSON. They know nothing of state, streams
or operators.

Every package may import them.
"""

"""Where a store that is filled from the outside is kept on a host: its engine, its positions, and views of it."""

"""The container's part of side inputs: fills the stores, backs them up, and gives attempts views of them."""

"""An application as a graph of operators: their specs, the checks of declarations, and the cut into stages."""

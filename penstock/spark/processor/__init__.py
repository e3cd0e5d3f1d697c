"""Runs PySpark's StatefulProcessor in the containers of a job."""

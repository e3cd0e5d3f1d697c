"""A program's side of a job that it runs, on any host: the handle, views of the run, signals, the program's end."""

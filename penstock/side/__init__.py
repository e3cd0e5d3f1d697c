"""Side inputs: streams that fill stores which the job only reads, in the container of the tasks that read them."""

"""The host of a process: the machine, folders that go with a process, logs, sockets."""

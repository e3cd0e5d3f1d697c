"""The host of a process: which machine it is, folders that go with a process, logs, sockets."""

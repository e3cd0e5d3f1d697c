"""Applications as their authors build them: streams, operators, tasks."""

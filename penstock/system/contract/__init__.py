"""The contract of a system. A system of your own imports it from `penstock.system.base`."""

"""What Penstock needs of a system. A system of your own imports it from `penstock.system.base`."""

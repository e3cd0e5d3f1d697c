"""What `penstock.testing.kafka_broker` is made of: the server's jars, its settings, certificates and process."""

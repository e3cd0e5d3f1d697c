"""The parts of `penstock.testing.kafka_broker`: the server's jars, its settings, certificates and process."""

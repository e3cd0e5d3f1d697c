"""The system `kafka`: streams are topics of Apache Kafka, reached through librdkafka (package `confluent-kafka`).

Found by name: only `admin` and `testing` may import it.
"""

"""The names of librdkafka's properties by client, without those that hold a function or an object of a program; and the
names that a configuration may not hold.
"""

from __future__ import annotations

from collections.abc import Mapping

SHARED = frozenset(
    """
    allow.auto.create.topics api.version.fallback.ms api.version.request api.version.request.timeout.ms
    bootstrap.servers broker.address.family broker.address.ttl broker.version.fallback client.dns.lookup client.id
    client.rack connections.max.idle.ms debug enable.metrics.push enable.random.seed
    enable.sasl.oauthbearer.unsecure.jwt enable.ssl.certificate.verification https.ca.location https.ca.pem
    log.connection.close log.thread.name log_level max.in.flight max.in.flight.requests.per.connection
    message.copy.max.bytes message.max.bytes metadata.broker.list metadata.max.age.ms
    metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy plugin.library.paths
    receive.message.max.bytes reconnect.backoff.jitter.ms reconnect.backoff.max.ms reconnect.backoff.ms
    retry.backoff.max.ms retry.backoff.ms sasl.kerberos.keytab sasl.kerberos.kinit.cmd
    sasl.kerberos.min.time.before.relogin sasl.kerberos.principal sasl.kerberos.service.name sasl.mechanism
    sasl.mechanisms sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
    sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
    sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
    sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
    sasl.oauthbearer.assertion.jwt.template.file sasl.oauthbearer.assertion.private.key.file
    sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.private.key.pem
    sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
    sasl.oauthbearer.client.id sasl.oauthbearer.client.secret sasl.oauthbearer.config sasl.oauthbearer.extensions
    sasl.oauthbearer.grant.type sasl.oauthbearer.metadata.authentication.type sasl.oauthbearer.method
    sasl.oauthbearer.scope sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url sasl.password
    sasl.username security.protocol socket.blocking.max.ms socket.connection.setup.timeout.ms
    socket.keepalive.enable socket.max.fails socket.nagle.disable socket.receive.buffer.bytes
    socket.send.buffer.bytes socket.timeout.ms ssl.ca.certificate.stores ssl.ca.location ssl.ca.pem
    ssl.certificate.location ssl.certificate.pem ssl.cipher.suites ssl.crl.location ssl.curves.list
    ssl.endpoint.identification.algorithm ssl.engine.id ssl.engine.location ssl.key.location ssl.key.password
    ssl.key.pem ssl.keystore.location ssl.keystore.password ssl.providers ssl.sigalgs.list statistics.interval.ms
    topic.blacklist topic.metadata.propagation.max.ms topic.metadata.refresh.fast.cnt
    topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms topic.metadata.refresh.sparse
    """.split()  # noqa: SIM905 - a table
)

CONSUMER = frozenset(
    """
    auto.commit.enable auto.commit.interval.ms auto.offset.reset check.crcs consume.callback.max.messages
    coordinator.query.interval.ms enable.auto.commit enable.auto.offset.store enable.partition.eof
    fetch.error.backoff.ms fetch.max.bytes fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms
    fetch.wait.max.ms group.id group.instance.id group.protocol group.protocol.type group.remote.assignor
    heartbeat.interval.ms isolation.level max.partition.fetch.bytes max.poll.interval.ms max.poll.records
    offset.store.method offset.store.path offset.store.sync.interval.ms partition.assignment.strategy
    queued.max.messages.kbytes queued.min.messages session.timeout.ms share.acknowledgement.mode
    """.split()  # noqa: SIM905 - a table
)

PRODUCER = frozenset(
    """
    acks batch.num.messages batch.size compression.codec compression.level compression.type
    delivery.report.only.error delivery.timeout.ms enable.gapless.guarantee enable.idempotence linger.ms
    message.send.max.retries message.timeout.ms partitioner produce.offset.report
    queue.buffering.backpressure.threshold queue.buffering.max.kbytes queue.buffering.max.messages
    queue.buffering.max.ms queuing.strategy request.required.acks request.timeout.ms retries
    sticky.partitioning.linger.ms transaction.timeout.ms transactional.id
    """.split()  # noqa: SIM905 - a table
)

INSTEAD: Mapping[str, str] = {
    "metadata.broker.list": "`bootstrap.servers`",
    "zookeeper.connect": "`bootstrap.servers`",
    "fetch.max.wait.ms": "`fetch.wait.max.ms`",
    "send.buffer.bytes": "`socket.send.buffer.bytes`",
    "receive.buffer.bytes": "`socket.receive.buffer.bytes`",
    "socket.connection.setup.timeout.max.ms": "`socket.connection.setup.timeout.ms`",
    "max.request.size": "`message.max.bytes`",
    "buffer.memory": "`queue.buffering.max.kbytes`, in KiB",
    "max.block.ms": "`default.api.timeout.ms` of `consumer`, which limits every call",
    "sasl.jaas.config": "`sasl.username` and `sasl.password`",
    "sasl.oauthbearer.scope.claim.name": "`sasl.oauthbearer.scope`",
    "ssl.truststore.location": "`ssl.ca.location`, a PEM file: `keytool -list -rfc -keystore FILE > ca.pem` writes one",
    "ssl.truststore.certificates": "`ssl.ca.pem`",
    "ssl.truststore.password": "`ssl.ca.location`, a PEM file, which has no password",
    "ssl.truststore.type": "`ssl.ca.location`, a PEM file",
    "ssl.keystore.certificate.chain": "`ssl.certificate.pem`",
    "ssl.keystore.key": "`ssl.key.pem`",
    "ssl.keystore.type": "`ssl.keystore.location` for PKCS#12, or `ssl.certificate.location` and `ssl.key.location`",
}
"""Names of Kafka's Java client, and older ones of librdkafka -> what to set instead."""

_DECIDED = "Penstock decides it: "
REFUSED: Mapping[str, str] = {
    name: reason
    for names, reason in {
        "group.id group.instance.id group.protocol group.protocol.type group.remote.assignor "
        "partition.assignment.strategy session.timeout.ms heartbeat.interval.ms max.poll.interval.ms "
        "coordinator.query.interval.ms share.acknowledgement.mode": _DECIDED
        + "a job assigns partitions itself and joins no consumer group",
        "enable.auto.commit auto.commit.enable auto.commit.interval.ms enable.auto.offset.store offset.store.method "
        "offset.store.path offset.store.sync.interval.ms": _DECIDED
        + "positions are in the job's checkpoints, and no group offset is committed",
        "auto.offset.reset": _DECIDED
        + "where a stream without a checkpoint begins is `streams.<system>.<stream>.samza.offset.default`, and "
        "messages that were deleted before they were read are an error",
        "isolation.level": _DECIDED + "only committed messages are read",
        "enable.partition.eof": _DECIDED + "the end of a partition tells that a range was read",
        "max.poll.records consume.callback.max.messages": _DECIDED + "readers take what is there",
        "allow.auto.create.topics": _DECIDED + "a stream that does not exist is an error",
        "acks request.required.acks enable.idempotence enable.gapless.guarantee": _DECIDED
        + "every write waits until all in-sync replicas have it, once",
        "transactional.id": _DECIDED + "every process has its own, which fencing needs",
        "delivery.report.only.error produce.offset.report": _DECIDED + "every message's delivery is reported",
        "partitioner sticky.partitioning.linger.ms": _DECIDED
        + "it chooses the partition of every message (docs/systems.md)",
        "queuing.strategy": _DECIDED + "messages are sent in order",
        "log.thread.name": _DECIDED + "logs of the client are in the log `penstock.system.kafka`",
        "plugin.library.paths": "Penstock loads no plugins into the client",
        "key.serializer value.serializer key.deserializer value.deserializer": "declare serdes in the application",
    }.items()
    for name in names.split()
}
"""Properties that a configuration may not hold, and why."""

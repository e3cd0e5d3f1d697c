#!/bin/bash
# The entry point of the image. `executor` is what Spark asks for: an executor, whose settings are in the environment.
# Everything else is a command of Penstock. `tini` passes SIGTERM on, and reaps containers whose parents have ended.
set -euo pipefail

if [[ "${1:-}" != executor ]]; then
    exec tini -- penstock "$@"
fi

# Files are for nobody else, as where Penstock starts Spark; output folders keep the image's own umask.
export PENSTOCK_UMASK="${PENSTOCK_UMASK:-$(umask)}"
umask 077

options=()
while IFS= read -r name; do
    options+=("${!name}")
done < <(compgen -v SPARK_JAVA_OPT_ | sort -t _ -k 4 -n)

# The first place has the ConfigMap that Spark makes for executors. SPARK_CLASSPATH is spark.executor.extraClassPath.
classpath="${SPARK_CONF_DIR:-$SPARK_HOME/conf}:${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$SPARK_HOME/jars/*"

exec tini -- java \
    ${options[@]+"${options[@]}"} \
    "-Xms$SPARK_EXECUTOR_MEMORY" \
    "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "$classpath" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" \
    --executor-id "$SPARK_EXECUTOR_ID" \
    --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --podName "$SPARK_EXECUTOR_POD_NAME"

{{/* The settings, by their names in the environment. */}}
{{- define "haulout.settings" -}}
{{- $vcenter := .Values.vcenter -}}
{{- $config := .Values.config -}}
{{- with $vcenter.host }}
VCENTER_HOST: {{ . | quote }}
{{- end }}
VCENTER_TLS_VERIFY: {{ $vcenter.tlsVerify | quote }}
{{- with $vcenter.thumbprint }}
VCENTER_THUMBPRINT: {{ . | quote }}
{{- end }}
{{- with $vcenter.caBundle }}
{{- if .configMapName }}
VCENTER_CA_BUNDLE: {{ printf "%s/%s" .mountPath .key | quote }}
{{- end }}
{{- end }}
VCENTER_CALL_TIMEOUT_SECONDS: {{ int64 $vcenter.callTimeoutSeconds | quote }}
VCENTER_LONG_POLL_SECONDS: {{ int64 $vcenter.longPollSeconds | quote }}
VCENTER_EVENTS: {{ $vcenter.events | quote }}
VCENTER_POLICIES: {{ $vcenter.policies | quote }}
VCENTER_CUSTOM_ATTRIBUTE: {{ $vcenter.customAttribute | quote }}
VCENTER_USER_FILE: /etc/haulout/vcenter/user
VCENTER_PASSWORD_FILE: /etc/haulout/vcenter/password
GPU_NODE_LABEL: {{ $config.gpuNodeLabel | quote }}
GPU_RESOURCES: {{ $config.gpuResources | quote }}
ANNOTATION_PREFIX: {{ $config.annotationPrefix | quote }}
BIND_BY_NAME: {{ $config.bindByName | quote }}
MAX_CONCURRENT_DRAINS: {{ int64 $config.maxConcurrentDrains | quote }}
MAX_UNAVAILABLE: {{ $config.maxUnavailable | toString | quote }}
POLL_INTERVAL_SECONDS: {{ int64 $config.pollIntervalSeconds | quote }}
DRAIN_TIMEOUT_SECONDS: {{ int64 $config.drainTimeoutSeconds | quote }}
DRAIN_TIMEOUT_ACTION: {{ $config.drainTimeoutAction | quote }}
EVICTION_RETRY_SECONDS: {{ int64 $config.evictionRetrySeconds | quote }}
GUEST_SHUTDOWN_TIMEOUT_SECONDS: {{ int64 $config.guestShutdownTimeoutSeconds | quote }}
RELOCATE_TIMEOUT_SECONDS: {{ int64 $config.relocateTimeoutSeconds | quote }}
POWER_ON_TIMEOUT_SECONDS: {{ int64 $config.powerOnTimeoutSeconds | quote }}
POWER_OFF_TIMEOUT_SECONDS: {{ int64 $config.powerOffTimeoutSeconds | quote }}
MAINTENANCE_RETRY_GRACE_SECONDS: {{ int64 $config.maintenanceRetryGraceSeconds | quote }}
VGPU_VMOTION_GRACE_SECONDS: {{ int64 $config.vgpuVmotionGraceSeconds | quote }}
DVX_VMOTION_GRACE_SECONDS: {{ int64 $config.dvxVmotionGraceSeconds | quote }}
STATIC_DEVICES: {{ $config.staticDevices | quote }}
HOST_SETTLE_SECONDS: {{ int64 $config.hostSettleSeconds | quote }}
NODE_MONITOR_GRACE_SECONDS: {{ int64 $config.nodeMonitorGraceSeconds | quote }}
DRAIN_SLOT_SECONDS: {{ int64 $config.drainSlotSeconds | quote }}
RELEASE: {{ printf "%s/%s" (include "haulout.leaseNamespace" .) (include "haulout.leaseName" .) | quote }}
{{- with $config.adoptReleases }}
ADOPT_RELEASES: {{ . | quote }}
{{- end }}
RETRY_MAX_SECONDS: {{ int64 $config.retryMaxSeconds | quote }}
NODE_CONDITIONS: {{ $config.nodeConditions | quote }}
NODE_MAINTENANCES: {{ $config.nodeMaintenances | quote }}
NODE_MAINTENANCE_HISTORY: {{ int64 $config.nodeMaintenanceHistory | quote }}
REQUIRE_APPROVAL: {{ $config.requireApproval | quote }}
LOG_FORMAT: {{ $config.logFormat | quote }}
LOG_LEVEL: {{ $config.logLevel | quote }}
{{- with $config.logLevelFile }}
LOG_LEVEL_FILE: {{ . | quote }}
{{- end }}
DRY_RUN: {{ $config.dryRun | quote }}
METRICS_ADDRESS: {{ printf "0.0.0.0:%d" (int64 .Values.ports.metrics) | quote }}
HEALTH_ADDRESS: {{ printf "0.0.0.0:%d" (int64 .Values.ports.health) | quote }}
STATUS_ADDRESS: {{ .Values.statusPage.enabled | ternary (printf "0.0.0.0:%d" (int64 .Values.ports.status)) "off" | quote }}
LEADER_ELECTION: {{ .Values.leaderElection.enabled | quote }}
{{- if .Values.leaderElection.enabled }}
LEASE_NAME: {{ include "haulout.leaseName" . | quote }}
LEASE_NAMESPACE: {{ include "haulout.leaseNamespace" . | quote }}
LEASE_DURATION_SECONDS: {{ .Values.leaderElection.durationSeconds | toString | quote }}
LEASE_RENEW_DEADLINE_SECONDS: {{ .Values.leaderElection.renewDeadlineSeconds | toString | quote }}
LEASE_RETRY_PERIOD_SECONDS: {{ .Values.leaderElection.retryPeriodSeconds | toString | quote }}
{{- end }}
{{- if .Values.workloadCluster.kubeconfigSecret.name }}
KUBECONFIG: {{ printf "/etc/haulout/kubeconfig/%s" .Values.workloadCluster.kubeconfigSecret.key | quote }}
{{- end }}
{{- with .Values.tracing.uiUrlTemplate }}
TRACE_UI_URL_TEMPLATE: {{ . | quote }}
{{- end }}
{{- if .Values.tracing.endpoint }}
{{- with .Values.tracing }}
OTEL_EXPORTER_OTLP_ENDPOINT: {{ .endpoint | quote }}
OTEL_EXPORTER_OTLP_PROTOCOL: {{ .protocol | quote }}
OTEL_SERVICE_NAME: {{ .serviceName | quote }}
{{- with .timeoutMilliseconds }}
OTEL_EXPORTER_OTLP_TIMEOUT: {{ int64 . | quote }}
{{- end }}
{{- end }}
{{- $attributes := dict "k8s.namespace.name" (include "haulout.namespace" .) "k8s.deployment.name" (include "haulout.fullname" .) }}
{{- with .Values.workloadCluster.name }}
{{- $_ := set $attributes "k8s.cluster.name" . }}
{{- end }}
{{- $pairs := list }}
{{- range $key, $value := merge (deepCopy .Values.tracing.resourceAttributes) $attributes }}
{{- $pairs = append $pairs (printf "%s=%v" $key $value) }}
{{- end }}
OTEL_RESOURCE_ATTRIBUTES: {{ join "," $pairs | quote }}
{{- end }}
{{- with .Values.proxy }}
{{- if .http }}
HTTP_PROXY: {{ .http | quote }}
{{- end }}
{{- if .https }}
HTTPS_PROXY: {{ .https | quote }}
{{- end }}
{{- if .exclude }}
NO_PROXY: {{ .exclude | quote }}
{{- end }}
{{- end }}
{{- end }}

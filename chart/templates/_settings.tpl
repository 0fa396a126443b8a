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
VCENTER_REPORT: {{ join "," $vcenter.report | default "none" | quote }}
VCENTER_USER_FILE: /etc/haulout/vcenter/user
VCENTER_PASSWORD_FILE: /etc/haulout/vcenter/password
GPU_NODE_LABEL: {{ $config.gpuNodeLabel | quote }}
GPU_RESOURCES: {{ $config.gpuResources | quote }}
NODE_BINDING: {{ $config.nodeBinding | quote }}
{{- with .Values.vcenter.scope }}
VCENTER_SCOPE: {{ join "," . | quote }}
{{- end }}
MAINTENANCE_TAINT: {{ $config.maintenanceTaint | quote }}
OUT_OF_SERVICE_TAINT: {{ $config.outOfServiceTaint | quote }}
GUARDS: {{ include "haulout.guards" . | quote }}
MAX_CONCURRENT_DRAINS: {{ int64 $config.maxConcurrentDrains | quote }}
MAX_UNAVAILABLE: {{ $config.maxUnavailable | toString | quote }}
MAX_UNAVAILABLE_GPUS: {{ $config.maxUnavailableGpus | toString | quote }}
MAX_POWER_OFFS_PER_HOUR: {{ $config.maxPowerOffsPerHour | toString | quote }}
{{- with $config.limitGroupLabel }}
LIMIT_GROUP_LABEL: {{ . | quote }}
{{- end }}
POLL_INTERVAL_SECONDS: {{ int64 $config.pollIntervalSeconds | quote }}
DRAIN_TIMEOUT_SECONDS: {{ int64 $config.drainTimeoutSeconds | quote }}
DRAIN_TIMEOUT_ACTION: {{ $config.drainTimeoutAction | quote }}
DRAIN_WAIT_MAX_SECONDS: {{ int64 $config.drainWaitMaxSeconds | quote }}
VOLUME_DETACH_TIMEOUT_SECONDS: {{ int64 $config.volumeDetachTimeoutSeconds | quote }}
GUEST_SHUTDOWN_TIMEOUT_SECONDS: {{ int64 $config.guestShutdownTimeoutSeconds | quote }}
POWER_ON_TIMEOUT_SECONDS: {{ int64 $config.powerOnTimeoutSeconds | quote }}
MAINTENANCE_RETRY_GRACE_SECONDS: {{ int64 $config.maintenanceRetryGraceSeconds | quote }}
VMOTION_GRACE_SECONDS: {{ $config.vmotionGraceSeconds | toString | quote }}
HOOK_TIMEOUT_SECONDS: {{ int64 $config.hookTimeoutSeconds | quote }}
HOOK_TIMEOUT_ACTION: {{ $config.hookTimeoutAction | quote }}
STATIC_DEVICES: {{ $config.staticDevices | quote }}
HOST_SETTLE_SECONDS: {{ int64 $config.hostSettleSeconds | quote }}
{{- with $config.adoptReleases }}
ADOPT_RELEASES: {{ . | quote }}
{{- end }}
NODE_MAINTENANCE_HISTORY: {{ int64 $config.nodeMaintenanceHistory | quote }}
FOREIGN_NODE_MAINTENANCES: {{ join "," $config.foreignNodeMaintenances | default "none" | quote }}
REQUIRE_APPROVAL: {{ $config.requireApproval | quote }}
LOG_FORMAT: {{ $config.logFormat | quote }}
LOG_LEVEL: {{ $config.logLevel | quote }}
{{- with $config.logLevelFile }}
LOG_LEVEL_FILE: {{ . | quote }}
{{- end }}
DRY_RUN: {{ $config.dryRun | quote }}
METRICS_ADDRESS: "[::]:8080"
HEALTH_ADDRESS: "[::]:8081"
{{- with .Values.statusPage }}
STATUS_ADDRESS: {{ include "haulout.statusIsServed" $ | empty | not | ternary (printf "%s:8082" (include "haulout.statusIsExposed" $ | empty | ternary "127.0.0.1" "[::]")) "off" | quote }}
{{- if .enabled }}
{{- with .hosts }}
STATUS_HOSTS: {{ join "," . | quote }}
{{- end }}
{{- if .tokenSecret.name }}
STATUS_TOKEN_FILE: /etc/haulout/status/token
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.notify.urlSecret.name }}
NOTIFY_URL_FILE: /etc/haulout/notify/url
{{- end }}
{{- with .Values.alertmanager }}
{{- if .urlSecret.name }}
ALERTMANAGER_URL_FILE: /etc/haulout/alertmanager/url
SILENCE_NODE_LABEL: {{ .nodeLabel | quote }}
{{- with .matchers }}
SILENCE_MATCHERS: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}
LEADER_ELECTION: {{ .Values.leaderElection.enabled | quote }}
{{- /* Also without a leader election: they are the name of the release in records. */}}
LEASE_NAME: {{ include "haulout.leaseName" . | quote }}
LEASE_NAMESPACE: {{ include "haulout.leaseNamespace" . | quote }}
{{- if .Values.leaderElection.enabled }}
{{- if .Values.workloadCluster.kubeconfigSecret.name }}
LEASE_KUBECONFIG: in-cluster
{{- end }}
LEASE_DURATION_SECONDS: {{ .Values.leaderElection.durationSeconds | toString | quote }}
LEASE_RENEW_DEADLINE_SECONDS: {{ .Values.leaderElection.renewDeadlineSeconds | toString | quote }}
{{- end }}
{{- if .Values.workloadCluster.machinesNamespace }}
MANAGEMENT_KUBECONFIG: in-cluster
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

{{/* The guards in use, by their names in GUARDS. */}}
{{- define "haulout.guards" -}}
{{- $names := dict "queuedTaint" "queued-taint" "clusterAutoscaler" "cluster-autoscaler" "medik8s" "medik8s" "nvsentinel" "nvsentinel" "gardener" "gardener" "clusterApi" "cluster-api" -}}
{{- $used := list -}}
{{- range $value, $name := $names -}}
{{- if index $.Values.guards $value -}}{{- $used = append $used $name -}}{{- end -}}
{{- end -}}
{{- if eq (len $used) (len $names) -}}all{{- else -}}{{- join "," $used | default "none" -}}{{- end -}}
{{- end }}

{{/* The API groups of other projects whose NodeMaintenances are requests, joined by commas. */}}
{{- define "haulout.foreignGroups" -}}
{{- $all := list (list "medik8s" "nodemaintenance.medik8s.io") (list "kubevirt" "nodemaintenance.kubevirt.io") (list "nvidia" "maintenance.nvidia.com") -}}
{{- $used := list -}}
{{- range $all -}}
{{- if has (first .) $.Values.config.foreignNodeMaintenances -}}{{- $used = append $used (last .) -}}{{- end -}}
{{- end -}}
{{- join "," $used -}}
{{- end }}

{{/* The rights on the objects of Cluster API. */}}
{{- define "haulout.clusterApiRules" -}}
- apiGroups: ["cluster.x-k8s.io"]
  resources: ["machines"]
  verbs: ["get", "patch"]
- apiGroups: ["infrastructure.cluster.x-k8s.io"]
  resources: ["vspherevms"]
  verbs: ["get", "list", "patch"]
{{- end }}

{{/* Whether `gpuResources` names drivers of Dynamic Resource Allocation. */}}
{{- define "haulout.hasDrivers" -}}
{{- range splitList "," .Values.config.gpuResources }}
{{- if not (contains "/" .) }}true{{ end }}
{{- end }}
{{- end }}

{{/* Whether the rights on the objects of an API group are given, in the cluster of the nodes. They do not depend on `guards.clusterApi`: an
episode that began with guards has to remove them. Takes the root and the versions of the group. */}}
{{- define "haulout.isIntegrated" -}}
{{- $root := first . -}}
{{- range rest . -}}
{{- if $root.Capabilities.APIVersions.Has . }}{{- if eq $root.Values.rbac.integrations "auto" }}true{{ end }}{{- end -}}
{{- end -}}
{{- if eq $root.Values.rbac.integrations "always" }}true{{ end -}}
{{- end }}

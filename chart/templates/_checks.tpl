{{/* Combinations of values that the schema cannot exclude. */}}
{{- define "haulout.checks" -}}
{{- range $path, $instead := .Files.Get "files/removed-values.yaml" | fromYaml -}}
{{- $at := $.Values -}}
{{- range splitList "." $path -}}{{- $at = get (ternary $at dict (kindIs "map" $at)) . -}}{{- end -}}
{{- if not (or (kindIs "invalid" $at) (eq (toString $at) "")) -}}
{{- fail (printf "the value %s is gone: %s" $path $instead) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.serviceMonitor.enabled .Values.podMonitor.enabled -}}
{{- fail "serviceMonitor.enabled and podMonitor.enabled are both true: every metric would be scraped twice; set one of them" -}}
{{- end -}}
{{- if and (gt (int .Values.replicaCount) 1) (not .Values.leaderElection.enabled) -}}
{{- fail (printf "replicaCount is %d and leaderElection.enabled is false: more than one replica would act; set replicaCount to 1 or leaderElection.enabled to true" (int .Values.replicaCount)) -}}
{{- end -}}
{{- if and (ne (default "RollingUpdate" .Values.strategy.type) "Recreate") (not .Values.leaderElection.enabled) -}}
{{- fail "strategy.type is RollingUpdate and leaderElection.enabled is false: two replicas would act during each rollout; set strategy.type to Recreate or leaderElection.enabled to true" -}}
{{- end -}}
{{- if and .Values.tenantObjectsOnly .Values.workloadCluster.kubeconfigSecret.name -}}
{{- fail "tenantObjectsOnly and workloadCluster.kubeconfigSecret.name are both set: the objects of tenantObjectsOnly are installed into the hosted cluster, the program with workloadCluster into the management cluster" -}}
{{- end -}}
{{- if and (not .Values.tenantObjectsOnly) (not .Values.vcenter.existingSecret) (not (and .Values.vcenter.host .Values.vcenter.user .Values.vcenter.password)) -}}
{{- fail "the vCenter and its credentials are missing: set vcenter.existingSecret, or vcenter.host, vcenter.user and vcenter.password" -}}
{{- end -}}
{{- range $key, $value := .Values.tracing.resourceAttributes -}}
{{- if contains "," (toString $value) -}}
{{- fail (printf "tracing.resourceAttributes: the value of %s has a comma, which separates attributes in OTEL_RESOURCE_ATTRIBUTES" $key) -}}
{{- end -}}
{{- end -}}
{{- if contains "gpu-node-vsphere-maintenance-controller" .Values.image.repository -}}
{{- fail (printf "image.repository is %s, the image of the Python controller: remove image.* from your values, or name your own image of Haulout" .Values.image.repository) -}}
{{- end -}}
{{- if and .Values.workloadCluster.name (not .Values.workloadCluster.kubeconfigSecret.name) -}}
{{- fail "workloadCluster.name is set and workloadCluster.kubeconfigSecret.name is not: Haulout would act on the cluster it runs in" -}}
{{- end -}}
{{- if and .Values.workloadCluster.kubeconfigSecret.name (not .Values.workloadCluster.name) -}}
{{- fail "workloadCluster.kubeconfigSecret.name is set and workloadCluster.name is not: releases, Leases and metrics of several clusters are distinguished by that name" -}}
{{- end -}}
{{- if and .Values.sentinel.enabled .Values.workloadCluster.kubeconfigSecret.name -}}
{{- fail "sentinel.enabled and workloadCluster.kubeconfigSecret.name are both set: a sentinel runs on the nodes of the cluster into which the chart is installed" -}}
{{- end -}}
{{- if ne (empty .Values.sentinel.window.start) (empty .Values.sentinel.window.end) -}}
{{- fail "sentinel.window needs both start and end" -}}
{{- end -}}
{{- if and .Values.sentinel.window.days (not .Values.sentinel.window.start) -}}
{{- fail "sentinel.window.days is set and sentinel.window.start is not: set start and end, such as 00:00 and 00:00 for whole days" -}}
{{- end -}}
{{- end }}

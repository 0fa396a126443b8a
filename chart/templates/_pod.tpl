{{/* What the pods of the Deployment and the pod of `helm test` have in common. */}}

{{/* The environment of the container, its resources and its mounts. */}}
{{- define "haulout.container" -}}
{{- $kubeconfig := .Values.workloadCluster.kubeconfigSecret }}
image: {{ include "haulout.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
envFrom:
  - configMapRef:
      name: {{ include "haulout.fullname" . }}
  {{- with .Values.extraEnvFrom }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
env:
  - name: POD_NAME
    valueFrom:
      fieldRef:
        fieldPath: metadata.name
  - name: POD_NAMESPACE
    valueFrom:
      fieldRef:
        fieldPath: metadata.namespace
  {{- if not .Values.vcenter.host }}
  - name: VCENTER_HOST
    valueFrom:
      secretKeyRef:
        name: {{ include "haulout.secretName" . }}
        key: {{ .Values.vcenter.secretKeys.host }}
  {{- end }}
  {{- if and .Values.tracing.endpoint .Values.tracing.headersSecret.name }}
  - name: OTEL_EXPORTER_OTLP_HEADERS
    valueFrom:
      secretKeyRef:
        name: {{ .Values.tracing.headersSecret.name }}
        key: {{ .Values.tracing.headersSecret.key }}
  {{- end }}
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
volumeMounts:
  - name: vcenter
    mountPath: /etc/haulout/vcenter
    readOnly: true
  {{- with .Values.vcenter.caBundle }}
  {{- if .configMapName }}
  - name: vcenter-ca
    mountPath: {{ .mountPath }}
    readOnly: true
  {{- end }}
  {{- end }}
  {{- if $kubeconfig.name }}
  - name: kubeconfig
    mountPath: /etc/haulout/kubeconfig
    readOnly: true
  {{- end }}
  {{- if and .Values.statusPage.enabled .Values.statusPage.tokenSecret.name }}
  - name: status-token
    mountPath: /etc/haulout/status
    readOnly: true
  {{- end }}
  {{- if .Values.notify.urlSecret.name }}
  - name: notify
    mountPath: /etc/haulout/notify
    readOnly: true
  {{- end }}
  {{- if .Values.alertmanager.urlSecret.name }}
  - name: alertmanager
    mountPath: /etc/haulout/alertmanager
    readOnly: true
  {{- end }}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* The volumes. */}}
{{- define "haulout.volumes" -}}
{{- $kubeconfig := .Values.workloadCluster.kubeconfigSecret }}
volumes:
  # Without subPath, so that the kubelet updates the files when the Secret changes.
  - name: vcenter
    secret:
      secretName: {{ include "haulout.secretName" . }}
      # 0444, because no user is fixed. As a decimal number: YAML 1.1 and 1.2 write octal numbers differently.
      defaultMode: 292
      items:
        - key: {{ .Values.vcenter.secretKeys.user }}
          path: user
        - key: {{ .Values.vcenter.secretKeys.password }}
          path: password
  {{- with .Values.vcenter.caBundle }}
  {{- if .configMapName }}
  - name: vcenter-ca
    configMap:
      name: {{ .configMapName }}
      items:
        - key: {{ .key }}
          path: {{ .key }}
  {{- end }}
  {{- end }}
  {{- if $kubeconfig.name }}
  - name: kubeconfig
    secret:
      secretName: {{ $kubeconfig.name }}
      # 0444, because no user is fixed. As a decimal number: YAML 1.1 and 1.2 write octal numbers differently.
      defaultMode: 292
      items:
        - key: {{ $kubeconfig.key }}
          path: {{ $kubeconfig.key }}
  {{- end }}
  {{- if and .Values.statusPage.enabled .Values.statusPage.tokenSecret.name }}
  - name: status-token
    secret:
      secretName: {{ .Values.statusPage.tokenSecret.name }}
      # 0444, because no user is fixed. As a decimal number: YAML 1.1 and 1.2 write octal numbers differently.
      defaultMode: 292
      items:
        - key: {{ .Values.statusPage.tokenSecret.key }}
          path: token
  {{- end }}
  {{- if .Values.notify.urlSecret.name }}
  - name: notify
    secret:
      secretName: {{ .Values.notify.urlSecret.name }}
      # 0444, because no user is fixed. As a decimal number: YAML 1.1 and 1.2 write octal numbers differently.
      defaultMode: 292
      items:
        - key: {{ .Values.notify.urlSecret.key }}
          path: url
  {{- end }}
  {{- if .Values.alertmanager.urlSecret.name }}
  - name: alertmanager
    secret:
      secretName: {{ .Values.alertmanager.urlSecret.name }}
      # 0444, because no user is fixed. As a decimal number: YAML 1.1 and 1.2 write octal numbers differently.
      defaultMode: 292
      items:
        - key: {{ .Values.alertmanager.urlSecret.key }}
          path: url
  {{- end }}
  {{- with .Values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* Account, security context and init containers. */}}
{{- define "haulout.pod" -}}
{{- $kubeconfig := .Values.workloadCluster.kubeconfigSecret }}
{{- with include "haulout.imagePullSecrets" . }}
{{- . | nindent 0 }}
{{- end }}
serviceAccountName: {{ include "haulout.serviceAccountName" . }}
# A hosted cluster is reached by its kubeconfig. The cluster in which the pod runs is needed only for the Lease and the Machines.
automountServiceAccountToken: {{ include "haulout.usesOwnCluster" . | eq "true" }}
enableServiceLinks: false
{{- with .Values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .Values.hostNetwork }}
hostNetwork: true
{{- end }}
{{- with .Values.initContainers }}
initContainers:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .Values.affinity }}
affinity:
  {{- toYaml .Values.affinity | nindent 2 }}
{{- else if not $kubeconfig.name }}
affinity:
  {{- include "haulout.avoidNodes" . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  {{- $ours := dict "labelSelector" (dict "matchLabels" (include "haulout.selectorLabels" $ | fromYaml)) }}
  - {{- toYaml (merge (deepCopy .) $ours) | nindent 4 }}
  {{- end }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with default (ternary "ClusterFirstWithHostNet" "" .Values.hostNetwork) .Values.dnsPolicy }}
dnsPolicy: {{ . }}
{{- end }}
{{- with .Values.dnsConfig }}
dnsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.hostAliases }}
hostAliases:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Whether the program talks to the cluster in which it runs, with the token of its pod. */}}
{{- define "haulout.usesOwnCluster" -}}
{{- or (not .Values.workloadCluster.kubeconfigSecret.name) (ne .Values.workloadCluster.machinesNamespace "") .Values.leaderElection.enabled -}}
{{- end }}

{{/* What the pods of the Deployment and the pod of `helm test` have in common. */}}

{{/* The environment of the container, its resources and its mounts. */}}
{{- define "haulout.container" -}}
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
  {{- range include "haulout.secretFiles" . | fromYamlArray }}
  - name: {{ .volume }}
    mountPath: {{ .mountPath }}
    readOnly: true
  {{- end }}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* The Secrets of which one key is a file. */}}
{{- define "haulout.secretFiles" -}}
{{- $kubeconfig := .Values.workloadCluster.kubeconfigSecret }}
{{- $token := ternary .Values.statusPage.tokenSecret (dict) .Values.statusPage.enabled }}
{{- range list
  (dict "volume" "kubeconfig" "mountPath" "/etc/haulout/kubeconfig" "path" $kubeconfig.key "of" $kubeconfig)
  (dict "volume" "status-token" "mountPath" "/etc/haulout/status" "path" "token" "of" $token)
  (dict "volume" "notify" "mountPath" "/etc/haulout/notify" "path" "url" "of" .Values.notify.urlSecret)
  (dict "volume" "alertmanager" "mountPath" "/etc/haulout/alertmanager" "path" "url" "of" .Values.alertmanager.urlSecret)
}}
{{- if .of.name }}
- {{ toJson . }}
{{- end }}
{{- end }}
{{- end }}

{{/* The volumes. */}}
{{- define "haulout.volumes" -}}
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
  {{- range include "haulout.secretFiles" . | fromYamlArray }}
  - name: {{ .volume }}
    secret:
      secretName: {{ .of.name }}
      # 0444, because no user is fixed. As a decimal number: YAML 1.1 and 1.2 write octal numbers differently.
      defaultMode: 292
      items:
        - key: {{ .of.key }}
          path: {{ .path }}
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

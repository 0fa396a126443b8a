{{/* Names and labels. */}}

{{- define "haulout.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{/* A name of at most so many characters: (list name most). A longer one ends with a digest, so that two long names do not become one. */}}
{{- define "haulout.cut" -}}
{{- $name := index . 0 -}}
{{- $most := index . 1 | int -}}
{{- if le (len $name) $most -}}
{{- $name -}}
{{- else -}}
{{- printf "%s-%s" ($name | trunc (int (sub $most 9)) | trimSuffix "-") ($name | sha256sum | trunc 8) -}}
{{- end -}}
{{- end }}

{{/* The name that `helm create` generates, so that an upgrade of the Python controller's chart finds its objects, and the
name of the hosted cluster, so that releases for several clusters can share a namespace. */}}
{{- define "haulout.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- include "haulout.cut" (list .Values.fullnameOverride 63) -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- with .Values.workloadCluster.name -}}
{{- if not (contains . $full) -}}{{- $full = printf "%s-%s" $full . -}}{{- end -}}
{{- end -}}
{{- include "haulout.cut" (list $full 63) -}}
{{- end -}}
{{- end }}

{{- define "haulout.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end }}

{{/* The name of cluster-scoped objects. It has the namespace, because two namespaces may have releases of the same name. */}}
{{- define "haulout.clusterName" -}}
{{- $full := include "haulout.fullname" . -}}
{{- $namespace := include "haulout.namespace" . -}}
{{- include "haulout.cut" (list (ternary $full (printf "%s-%s" $namespace $full) (eq $full $namespace)) 63) -}}
{{- end }}

{{- define "haulout.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "haulout.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{- define "haulout.secretName" -}}
{{- default (printf "%s-vcenter" (include "haulout.fullname" .)) .Values.vcenter.existingSecret -}}
{{- end }}

{{- define "haulout.leaseName" -}}
{{- default (include "haulout.fullname" .) .Values.leaderElection.leaseName -}}
{{- end }}

{{- define "haulout.leaseNamespace" -}}
{{- default (include "haulout.namespace" .) .Values.leaderElection.leaseNamespace -}}
{{- end }}

{{- define "haulout.image" -}}
{{- $repository := .Values.image.repository -}}
{{- /* As in a reference of an image: the first part is a registry if it has a dot or a port, or is localhost. */ -}}
{{- $first := splitList "/" $repository | first -}}
{{- $hasRegistry := and (contains "/" $repository) (or (contains "." $first) (contains ":" $first) (eq $first "localhost")) -}}
{{- with .Values.global.imageRegistry | default (ternary "" .Values.image.registry $hasRegistry) -}}
{{- $repository = printf "%s/%s" . (ternary (trimPrefix (printf "%s/" $first) $repository) $repository $hasRegistry) -}}
{{- end -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end }}

{{/* Secrets for pulling images, each once. */}}
{{- define "haulout.imagePullSecrets" -}}
{{- $names := list -}}
{{- range concat .Values.global.imagePullSecrets .Values.imagePullSecrets -}}
{{- $names = append $names (kindIs "string" . | ternary . (get (kindIs "map" . | ternary . dict) "name")) -}}
{{- end -}}
{{- with $names -}}
imagePullSecrets:
{{- range uniq . }}
  - name: {{ . }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* These labels never change, because the selector of a Deployment is immutable. */}}
{{- define "haulout.selectorLabels" -}}
app.kubernetes.io/name: {{ include "haulout.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "haulout.labels" -}}
{{ include "haulout.selectorLabels" . }}
{{- /* No value changes it, so `kubectl haulout` and policies find every release by it. */}}
app.kubernetes.io/part-of: haulout
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The pods of the sentinel must not match the selectors of the Deployment, its budget and its monitors. */}}
{{- define "haulout.sentinelSelectorLabels" -}}
app.kubernetes.io/name: {{ include "haulout.name" . | trunc 54 | trimSuffix "-" }}-sentinel
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "haulout.sentinelLabels" -}}
{{- $ours := include "haulout.sentinelSelectorLabels" . | fromYaml -}}
{{- merge $ours (include "haulout.labels" . | fromYaml) | toYaml -}}
{{- end }}

{{/* The pod of `helm test` must not match them either. */}}
{{- define "haulout.checkName" -}}
{{- include "haulout.name" . | trunc 57 | trimSuffix "-" }}-check
{{- end }}

{{- define "haulout.checkLabels" -}}
{{- $ours := dict "app.kubernetes.io/name" (include "haulout.checkName" .) -}}
{{- merge $ours (include "haulout.labels" . | fromYaml) | toYaml -}}
{{- end }}

{{/* Whether other pods reach the status page. */}}
{{/* With the network of the node, the loopback is that of the node, so a token is needed there too. */}}
{{- define "haulout.statusIsServed" -}}
{{- if and .Values.statusPage.enabled (or .Values.statusPage.tokenSecret.name (not .Values.hostNetwork)) }}true{{- end }}
{{- end }}

{{- define "haulout.statusIsExposed" -}}
{{- with .Values.statusPage }}{{- if and .enabled .tokenSecret.name }}true{{- end }}{{- end }}
{{- end }}

{{/* Keeps the pods off the nodes, where there are others, that the label selector matches. A node does not match if at least one requirement is not
met. So each requirement becomes a preference for its negation. It is no demand, because a small cluster may have no other
nodes. */}}
{{- define "haulout.avoidNodes" -}}
nodeAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    {{- $negations := dict "In" "NotIn" "NotIn" "In" "Exists" "DoesNotExist" "DoesNotExist" "Exists" }}
    {{- range include "haulout.requirements" . | fromYamlArray }}
    - weight: 100
      preference:
        matchExpressions:
          - {{- merge (dict "operator" (get $negations .operator)) . | toYaml | nindent 12 }}
    {{- end }}
{{- end }}

{{/* The requirements of the label selector in the notation of Kubernetes' objects. */}}
{{- define "haulout.requirements" -}}
{{- range $requirement := regexFindAll "[^,(]+(\\([^)]*\\))?" .Values.config.gpuNodeLabel -1 }}
{{- $requirement = trim $requirement }}
{{- if regexMatch "\\)$" $requirement }}
- key: {{ regexFind "^[^\\s(]+" $requirement }}
  operator: {{ ternary "NotIn" "In" (regexMatch "^\\S+\\s+notin\\s*\\(" $requirement) }}
  values:
  {{- range $value := splitList "," (regexReplaceAll "^[^(]*\\(([^)]*)\\)$" $requirement "${1}") }}
    - {{ trim $value | quote }}
  {{- end }}
{{- else if contains "!=" $requirement }}
- key: {{ regexSplit "\\s*!=\\s*" $requirement 2 | first }}
  operator: NotIn
  values:
    - {{ regexSplit "\\s*!=\\s*" $requirement 2 | last | quote }}
{{- else if contains "=" $requirement }}
- key: {{ regexSplit "\\s*==?\\s*" $requirement 2 | first }}
  operator: In
  values:
    - {{ regexSplit "\\s*==?\\s*" $requirement 2 | last | quote }}
{{- else if hasPrefix "!" $requirement }}
- key: {{ trimPrefix "!" $requirement | trim }}
  operator: DoesNotExist
{{- else }}
- key: {{ $requirement }}
  operator: Exists
{{- end }}
{{- end }}
{{- end }}

{{/* Puts the pods of the sentinel on the nodes that the label selector matches. */}}
{{- define "haulout.onNodes" -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      - matchExpressions:
          {{- include "haulout.requirements" . | nindent 10 }}
{{- end }}

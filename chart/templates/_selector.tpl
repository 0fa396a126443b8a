{{/* Keeps the pods off the nodes that the label selector matches. A node does not match if at least one requirement is not
met. So each requirement becomes a term with its negation; terms are alternatives. */}}
{{- define "haulout.avoidNodes" -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
    {{- range $requirement := regexFindAll "[^,(]+(\\([^)]*\\))?" .Values.config.gpuNodeLabel -1 }}
      {{- $requirement = trim $requirement }}
      - matchExpressions:
        {{- if regexMatch "\\)$" $requirement }}
          {{- $operator := ternary "In" "NotIn" (regexMatch "^\\S+\\s+notin\\s*\\(" $requirement) }}
          - key: {{ regexFind "^[^\\s(]+" $requirement }}
            operator: {{ $operator }}
            values:
            {{- range $value := splitList "," (regexReplaceAll "^[^(]*\\(([^)]*)\\)$" $requirement "${1}") }}
              - {{ trim $value | quote }}
            {{- end }}
        {{- else if contains "!=" $requirement }}
          - key: {{ regexSplit "\\s*!=\\s*" $requirement 2 | first }}
            operator: In
            values:
              - {{ regexSplit "\\s*!=\\s*" $requirement 2 | last | quote }}
        {{- else if contains "=" $requirement }}
          - key: {{ regexSplit "\\s*==?\\s*" $requirement 2 | first }}
            operator: NotIn
            values:
              - {{ regexSplit "\\s*==?\\s*" $requirement 2 | last | quote }}
        {{- else if hasPrefix "!" $requirement }}
          - key: {{ trimPrefix "!" $requirement | trim }}
            operator: Exists
        {{- else }}
          - key: {{ $requirement }}
            operator: DoesNotExist
        {{- end }}
    {{- end }}
{{- end }}

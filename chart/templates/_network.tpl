{{/* Parts of the NetworkPolicies. */}}

{{- define "haulout.dnsEgress" -}}
# Some clusters, such as OpenShift, translate port 53 to 5353 before they apply the policy.
- ports:
    {{- range $port := list 53 5353 }}
    {{- range list "UDP" "TCP" }}
    - port: {{ $port }}
      protocol: {{ . }}
    {{- end }}
    {{- end }}
{{- end }}

{{/* A rule with the port of an address in addition. Takes the rule and the address: a name, name:port or URL. */}}
{{- define "haulout.withPorts" -}}
{{- $rule := deepCopy (first .) -}}
{{- $port := regexFind ":[0-9]+(/|$)" (last .) | trimAll ":/" -}}
{{- if $port -}}
{{- $_ := set $rule "ports" (append (default list $rule.ports) (int $port) | uniq) -}}
{{- end -}}
{{- toYaml $rule -}}
{{- end }}

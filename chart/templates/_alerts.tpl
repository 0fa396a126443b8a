{{/* The alerts, without what all of them have: the runbook and the labels that the owner adds. Every replica is
scraped, so each expression takes the greatest of what they say. */}}
{{- define "haulout.alerts" -}}
{{- $of := printf "namespace=%q" (include "haulout.namespace" .) -}}
{{- with .Values.workloadCluster.name -}}{{- $of = printf "%s,workload_cluster=%q" $of . -}}{{- end -}}
{{- $poll := int64 .Values.config.pollIntervalSeconds -}}
{{- $long := int64 .Values.vcenter.longPollSeconds -}}
{{- $stale := mul 3 (max $poll $long) }}
- alert: HauloutDrainStuck
  expr: max by (namespace, node) (haulout_node_phase{ {{- $of }},phase="Draining"}) == 1
  for: 30m
  labels:
    severity: warning
  annotations:
    summary: Node {{`{{ $labels.node }}`}} has been draining for half an hour
    description: Pods do not go; most often a PodDisruptionBudget holds them. The host waits in Entering maintenance mode meanwhile.
- alert: HauloutNodeNotBackAfterPowerOn
  expr: |
    max by (namespace, node) (haulout_node_phase{ {{- $of }},phase=~"PoweringOn|Rejoining"}) == 1
    or
    (max by (namespace, node) (haulout_node_phase{ {{- $of }},phase="Parked"}) == 1
      and on (namespace, node) max_over_time((max by (namespace, node) (haulout_node_phase{ {{- $of }},phase=~"PoweringOn|Rejoining"}))[1h:1m]) == 1)
  for: {{ div (add (mul 2 (int64 .Values.config.powerOnTimeoutSeconds)) 59) 60 }}m
  labels:
    severity: critical
  annotations:
    summary: Node {{`{{ $labels.node }}`}} is not back after its VM was to power on
    description: The VM, the node's Ready on another boot, or its GPUs are missing. The node stays cordoned.
- alert: HauloutNodeParked
  expr: max by (namespace, node) (haulout_node_phase{ {{- $of }},phase="Parked"}) == 1
  for: 10m
  labels:
    severity: warning
  annotations:
    summary: The maintenance of node {{`{{ $labels.node }}`}} waits for a person
    description: It cannot go on and says why in the node's Events. It goes on by itself when the reason goes away.
- alert: HauloutVCenterUnreachable
  expr: max by (namespace) (haulout_vcenter_session_up{ {{- $of }}}) == 0
  for: 5m
  labels:
    severity: critical
  annotations:
    summary: Haulout does not hear vCenter
    description: Hosts that are to enter maintenance now hang, and episodes in flight stand still.
- alert: HauloutDetectionStale
  expr: time() - max by (namespace) (haulout_vcenter_last_update_timestamp_seconds{ {{- $of }}}) > {{ $stale }}
  for: 1m
  labels:
    severity: critical
  annotations:
    summary: vCenter has answered no question for updates for {{`{{ $value | humanizeDuration }}`}}
    description: The session stands, but a click on Enter Maintenance Mode may go unheard.
- alert: HauloutForcedPowerOff
  expr: sum by (namespace, reason) (increase(haulout_forced_poweroffs_total{ {{- $of }}}[15m])) > 0
  labels:
    severity: warning
  annotations:
    summary: The power of a VM was cut ({{`{{ $labels.reason }}`}})
    description: Its guest was not shut down in order; what it had not written is lost.
- alert: HauloutNodeLeftCordoned
  expr: |
    (max by (node) (kube_node_spec_unschedulable) == 1)
      and on (node) (max by (node) (haulout_node_phase{ {{- $of }},phase="InService"}) == 1)
  for: 1h
  labels:
    severity: warning
  annotations:
    summary: Node {{`{{ $labels.node }}`}} is cordoned, and no maintenance of it is open
    description: A person's cordon stays after an episode, and so does one with keep-cordoned. Its GPUs stand idle.
- alert: HauloutQueueStarved
  expr: max by (namespace) (haulout_queue_depth{ {{- $of }}}) > 0
  for: 2h
  labels:
    severity: warning
  annotations:
    summary: Nodes have been waiting for their turn for two hours
    description: A drain that does not end holds the only place, or more hosts are to leave than the limits let go.
- alert: HauloutAbsent
  expr: absent(haulout_build_info{ {{- $of }}})
  for: 5m
  labels:
    severity: critical
  annotations:
    summary: Haulout is gone
    description: No replica is scraped. Hosts that are to enter maintenance now hang, and episodes in flight stand still.
{{- if .Values.leaderElection.enabled }}
- alert: HauloutNoLeader
  expr: max by (namespace) (leader_election_master_status{ {{- $of }},name={{ include "haulout.leaseName" . | quote }}}) == 0
  for: 2m
  labels:
    severity: critical
  annotations:
    summary: No replica of Haulout leads
    description: All of them hear vCenter and Kubernetes, and none acts. Hosts that are to enter maintenance now hang.
{{- end }}
- alert: HauloutMaintenanceInProgress
  expr: max by (namespace, node) (haulout_node_phase{ {{- $of }},phase!="InService"}) == 1
  labels:
    severity: none
  annotations:
    summary: Node {{`{{ $labels.node }}`}} is in maintenance
    description: For nobody to read, but to inhibit KubeNodeUnreachable, KubeNodeNotReady and TargetDown of the same node.
{{- end }}

{{- define "haulout.recordings" -}}
{{- $of := printf "namespace=%q" (include "haulout.namespace" .) -}}
{{- with .Values.workloadCluster.name -}}{{- $of = printf "%s,workload_cluster=%q" $of . -}}{{- end }}
- record: phase:haulout_phase_duration_seconds:p95_1d
  expr: histogram_quantile(0.95, sum by (namespace, phase, le) (increase(haulout_phase_duration_seconds_bucket{ {{- $of }}}[1d])))
- record: source:haulout_detection_latency_seconds:p95_1d
  expr: histogram_quantile(0.95, sum by (namespace, source, le) (increase(haulout_detection_latency_seconds_bucket{ {{- $of }}}[1d])))
{{- end }}

{{/* The alerts, without what all of them have: the runbook and the labels that the owner adds. Every replica is scraped.
What is told of nodes comes from the leader alone; what each replica tells is judged on the replica that leads, and on
every replica where there is no election and the metric is absent. */}}
{{- define "haulout.alerts" -}}
{{- $of := printf "namespace=%q" (include "haulout.namespace" .) -}}
{{- with .Values.workloadCluster.name -}}{{- $of = printf "%s,workload_cluster=%q" $of . -}}{{- end -}}
{{- $leads := printf "unless on (namespace, pod) (leader_election_master_status{ %s} == 0)" $of -}}
{{- $poll := int64 .Values.config.pollIntervalSeconds -}}
{{- $long := int64 .Values.vcenter.longPollSeconds -}}
{{- $stale := mul 3 (max $poll $long) -}}
{{/* Half of the time, so that somebody can still do something about it, and half an hour at the most. */}}
{{- $drain := max 1 (min 30 (div (int64 .Values.config.drainTimeoutSeconds) 120)) -}}
{{- $relocate := max 1 (min 30 (div (int64 .Values.config.relocateTimeoutSeconds) 120)) -}}
{{- $shutdown := div (add (int64 .Values.config.guestShutdownTimeoutSeconds) 300 59) 60 }}
- alert: HauloutDrainStuck
  expr: max by (namespace, node) (haulout_node_phase{ {{- $of }},phase="Draining"}) == 1
  for: {{ $drain }}m
  labels:
    severity: warning
  annotations:
    summary: Node {{`{{ $labels.node }}`}} has been draining for {{ $drain }} minutes
    description: Pods do not go; most often a PodDisruptionBudget holds them. The host waits in Entering maintenance mode meanwhile.
- alert: HauloutDrainTimedOut
  expr: sum by (namespace) (increase(haulout_drain_pods_left_behind_total{ {{- $of }}}[15m])) > 0
  labels:
    severity: warning
  annotations:
    summary: A drain timed out and pods were cut off
    description: Their node was shut down with them. The Event DrainTimedOut on the node names them.
- alert: HauloutShutdownStuck
  expr: max by (namespace, node) (haulout_node_phase{ {{- $of }},phase="ShuttingDown"}) == 1
  for: {{ $shutdown }}m
  labels:
    severity: critical
  annotations:
    summary: The VM of node {{`{{ $labels.node }}`}} does not go off
    description: The node is drained and its VM was to be shut down or powered off {{ $shutdown }} minutes ago. Its host waits in Entering maintenance mode.
- alert: HauloutRelocationStuck
  expr: max by (namespace, node) (haulout_node_phase{ {{- $of }},phase="Relocating"}) == 1
  for: {{ $relocate }}m
  labels:
    severity: warning
  annotations:
    summary: The VM of node {{`{{ $labels.node }}`}} has been moving to another host for {{ $relocate }} minutes
    description: The VM is off meanwhile. A cold move between hosts that share a datastore takes seconds.
- alert: HauloutNodeNotPoweredOn
  expr: |
    max by (namespace, node) (haulout_node_phase{ {{- $of }},phase="AwaitingHost"}) == 1
      and on (namespace, node) (
        max by (namespace, node, host) (haulout_node_host_info{ {{- $of }}})
          * on (namespace, host) group_left ()
        max by (namespace, host) (haulout_host_maintenance_state{ {{- $of }},state="normal"})
      ) == 1
      unless on (namespace, node) max by (namespace, node) (haulout_waiting_on{ {{- $of }},kind="request"}) == 1
  for: 10m
  labels:
    severity: critical
  annotations:
    summary: Node {{`{{ $labels.node }}`}} is still off although its host is back in service
    description: The VM ought to be powered on as soon as its host takes VMs again.
- alert: HauloutNodeAwayLong
  expr: max by (namespace, node) (haulout_node_phase{ {{- $of }},phase=~"AwaitingHost|Drained"}) == 1
  for: 24h
  labels:
    severity: warning
  annotations:
    summary: Node {{`{{ $labels.node }}`}} has been out of service for a day
    description: Its host is still in maintenance, or a NodeMaintenance keeps it drained or off. Its GPUs stand idle.
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
  expr: |
    max by (namespace, node) (haulout_node_phase{ {{- $of }},phase=~"Parked|Adopting"}) == 1
    or
    max by (namespace, node) (haulout_waiting_on{ {{- $of }},kind=~"parked|other-release"}) == 1
  for: 10m
  labels:
    severity: warning
  annotations:
    summary: The maintenance of node {{`{{ $labels.node }}`}} waits for a person
    description: It cannot go on and says why in the node's Events. It goes on by itself when the reason goes away.
- alert: HauloutWaitsForPerson
  expr: max by (namespace, node, kind) (haulout_waiting_on{ {{- $of }},kind=~"approval|drain-held|node-object|powered-on|question|skip"}) == 1
  for: 1h
  labels:
    severity: warning
  annotations:
    summary: Node {{`{{ $labels.node }}`}} has been waiting for a person for an hour ({{`{{ $labels.kind }}`}})
    description: Nothing goes on for this node until somebody does what it waits for.
- alert: HauloutVCenterUnreachable
  expr: max by (namespace) (haulout_vcenter_session_up{ {{- $of }}} {{ $leads }}) == 0
  for: 5m
  labels:
    severity: critical
  annotations:
    summary: Haulout does not hear vCenter
    description: Hosts that are to enter maintenance now hang, and episodes in flight stand still.
- alert: HauloutDetectionStale
  expr: time() - max by (namespace) (haulout_vcenter_last_update_timestamp_seconds{ {{- $of }}} {{ $leads }}) > {{ $stale }}
  for: 1m
  labels:
    severity: critical
  annotations:
    summary: vCenter has answered no question for updates for {{`{{ $value | humanizeDuration }}`}}
    description: The session stands, but a click on Enter Maintenance Mode may go unheard.
- alert: HauloutKubernetesUnreachable
  expr: max by (namespace) (haulout_waiting_on{ {{- $of }},kind="kubernetes"}) == 1
  for: 5m
  labels:
    severity: critical
  annotations:
    summary: Haulout does not hear Kubernetes
    description: A watch of Nodes or NodeMaintenance objects does not stand. The nodes that it concerns wait until it does.
- alert: HauloutDegraded
  expr: max by (namespace, reason) (haulout_degraded{ {{- $of }}} {{ $leads }}) == 1
  for: 10m
  labels:
    severity: warning
  annotations:
    summary: Haulout works without a part of it ({{`{{ $labels.reason }}`}})
    description: Maintenances go on. What is missing is told by /readyz?verbose of the leader.
- alert: HauloutRecordsNotCopied
  expr: sum by (namespace) (increase(haulout_node_maintenance_writes_refused_total{ {{- $of }}}[15m])) > 3
  for: 30m
  labels:
    severity: warning
  annotations:
    summary: NodeMaintenance objects cannot be written
    description: Requests are not told how they stand, and an episode whose Node object is deleted may have no second copy of its record.
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
    description: Replicas run, and none acts. Hosts that are to enter maintenance now hang.
- alert: HauloutStandbyWithoutVCenter
  expr: |
    max by (namespace, pod) (haulout_vcenter_reachable{ {{- $of }}}) == 0
      and on (namespace, pod) max by (namespace, pod) (leader_election_master_status{ {{- $of }}}) == 0
  for: 15m
  labels:
    severity: warning
  annotations:
    summary: The standby {{`{{ $labels.pod }}`}} cannot reach vCenter
    description: The leader works. If it fails, this replica cannot take its place.
{{- end }}
- alert: HauloutMaintenanceInProgress
  expr: max by (namespace, node) (haulout_node_phase{ {{- $of }},phase!="InService"}) == 1
  labels:
    severity: none
  annotations:
    summary: Node {{`{{ $labels.node }}`}} is in maintenance
    description: For nobody to read, but to inhibit KubeNodeUnreachable and KubeNodeNotReady of the same node. Every phase that it covers has an alert of its own.
{{- end }}

{{- define "haulout.recordings" -}}
{{- $of := printf "namespace=%q" (include "haulout.namespace" .) -}}
{{- with .Values.workloadCluster.name -}}{{- $of = printf "%s,workload_cluster=%q" $of . -}}{{- end }}
- record: phase:haulout_phase_duration_seconds:p95_1d
  expr: histogram_quantile(0.95, sum by (namespace, phase, le) (increase(haulout_phase_duration_seconds_bucket{ {{- $of }}}[1d])))
- record: source:haulout_detection_latency_seconds:p95_1d
  expr: histogram_quantile(0.95, sum by (namespace, source, le) (increase(haulout_detection_latency_seconds_bucket{ {{- $of }}}[1d])))
{{- end }}

{{/* The alerts without their common parts, the runbook URL and the additional labels. Every replica is scraped. Only the
leader has metrics of nodes. Metrics that every replica has are evaluated for the leader, and without an election for
every replica, because the metric of the election is absent then. */}}
{{- define "haulout.alerts" -}}
{{- $of := printf "namespace=%q" (include "haulout.namespace" .) -}}
{{- with .Values.workloadCluster.name -}}{{- $of = printf "%s,workload_cluster=%q" $of . -}}{{- end -}}
{{- $leads := printf "unless on (namespace, pod) (leader_election_master_status{ %s} == 0)" $of -}}
{{- $poll := int64 .Values.config.pollIntervalSeconds -}}
{{- $long := 120 -}}
{{- $stale := mul 3 (max $poll $long) -}}
{{/* Half of the timeout, so that a person can still act, and at most 30 minutes. */}}
{{- $drain := max 1 (min 30 (div (int64 .Values.config.drainTimeoutSeconds) 120)) -}}
{{- $shutdown := div (add (int64 .Values.config.volumeDetachTimeoutSeconds) (int64 .Values.config.guestShutdownTimeoutSeconds) 300 59) 60 }}
- alert: HauloutDrainStuck
  expr: |
    max by (namespace, node) (haulout_node_phase{ {{- $of }},phase="Draining"}) == 1
      unless on (namespace, node) max by (namespace, node) (haulout_waiting_on{ {{- $of }},kind="hook"}) == 1
  for: {{ $drain }}m
  labels:
    severity: warning
  annotations:
    summary: Node {{`{{ $labels.node }}`}} has been draining for {{ $drain }} minutes
    description: Pods are not evicted, most often because of a PodDisruptionBudget, or because their annotation asks to wait. The host stays in Entering maintenance mode meanwhile.
- alert: HauloutDrainTimedOut
  expr: sum by (namespace) (increase(haulout_drain_pods_left_behind_total{ {{- $of }}}[15m])) > 0
  labels:
    severity: warning
  annotations:
    summary: A drain timed out, and pods were shut down with their node
    description: The Event DrainTimedOut of the node names the pods.
- alert: HauloutShutdownStuck
  expr: max by (namespace, node) (haulout_node_phase{ {{- $of }},phase="ShuttingDown"}) == 1
  for: {{ $shutdown }}m
  labels:
    severity: critical
  annotations:
    summary: The VM of node {{`{{ $labels.node }}`}} is not powered off
    description: The node is drained, and its VM should have been off for {{ $shutdown }} minutes. Its host stays in Entering maintenance mode.
- alert: HauloutRelocationStuck
  expr: max by (namespace, node) (haulout_node_phase{ {{- $of }},phase="Relocating"}) == 1
  for: 5m
  labels:
    severity: warning
  annotations:
    summary: The VM of node {{`{{ $labels.node }}`}} has been moving to another host for 5 minutes
    description: The VM is off meanwhile. Relocating a powered-off VM between hosts that share a datastore takes seconds.
- alert: HauloutNodeNotPoweredOn
  expr: |
    max by (namespace, node) (haulout_node_phase{ {{- $of }},phase="AwaitingHost"}) == 1
      and on (namespace, node) (
        max by (namespace, node, host) (haulout_node_host_info{ {{- $of }}})
          * on (namespace, host) group_left ()
        max by (namespace, host) (haulout_host_maintenance_state{ {{- $of }},state="normal"})
      ) == 1
      unless on (namespace, node) max by (namespace, node) (haulout_waiting_on{ {{- $of }},kind=~"request|host-settling|maintenance-retry"}) == 1
  for: 10m
  labels:
    severity: critical
  annotations:
    summary: Node {{`{{ $labels.node }}`}} is still off although its host is back in service
    description: The VM should be powered on as soon as its host is out of maintenance mode.
- alert: HauloutNodeAwayLong
  expr: max by (namespace, node) (haulout_node_phase{ {{- $of }},phase=~"AwaitingHost|Drained"}) == 1
  for: 24h
  labels:
    severity: warning
  annotations:
    summary: Node {{`{{ $labels.node }}`}} has been out of service for a day
    description: Its host is still in maintenance, or a NodeMaintenance keeps it drained or powered off. Its GPUs are unused.
- alert: HauloutNodeNotBackAfterPowerOn
  expr: |
    max by (namespace, node) (haulout_node_phase{ {{- $of }},phase=~"PoweringOn|Rejoining"}) == 1
      unless on (namespace, node) max by (namespace, node) (haulout_waiting_on{ {{- $of }},kind="hook"}) == 1
    or
    (max by (namespace, node) (haulout_node_phase{ {{- $of }},phase="Parked"}) == 1
      and on (namespace, node) max_over_time((max by (namespace, node) (haulout_node_phase{ {{- $of }},phase=~"PoweringOn|Rejoining"}))[1h:1m]) == 1)
  for: {{ div (add (mul 2 (int64 .Values.config.powerOnTimeoutSeconds)) 59) 60 }}m
  labels:
    severity: critical
  annotations:
    summary: Node {{`{{ $labels.node }}`}} is not back although its VM should be powered on
    description: The VM is off, or the node is not Ready on a new boot, or its GPUs are missing. The node stays cordoned.
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
    description: The Events of the node give the reason. The maintenance resumes by itself when the reason goes away.
- alert: HauloutWaitsForPerson
  expr: max by (namespace, node, kind) (haulout_waiting_on{ {{- $of }},kind=~"already-there|approval|drain-held|hook|invalid-window|node-object|powered-on|question|skip"}) == 1
  for: 1h
  labels:
    severity: warning
  annotations:
    summary: Node {{`{{ $labels.node }}`}} has been waiting for a person for an hour ({{`{{ $labels.kind }}`}})
    description: The maintenance of this node continues only after a person acts.
- alert: HauloutVCenterUnreachable
  expr: max by (namespace) (haulout_vcenter_session_up{ {{- $of }}} {{ $leads }}) == 0
  for: 5m
  labels:
    severity: critical
  annotations:
    summary: Haulout has no connection to vCenter
    description: Hosts that enter maintenance mode now wait, and open episodes do not continue.
- alert: HauloutDetectionStale
  expr: time() - max by (namespace) (haulout_vcenter_last_update_timestamp_seconds{ {{- $of }}} {{ $leads }}) > {{ $stale }}
  for: 1m
  labels:
    severity: critical
  annotations:
    summary: vCenter has not answered WaitForUpdatesEx for {{`{{ $value | humanizeDuration }}`}}
    description: The session exists, but a host that enters maintenance mode may not be noticed.
- alert: HauloutKubernetesUnreachable
  expr: max by (namespace) (haulout_waiting_on{ {{- $of }},kind="kubernetes"}) == 1
  for: 5m
  labels:
    severity: critical
  annotations:
    summary: A Kubernetes watch of Haulout is down
    description: The watch of Nodes or NodeMaintenance objects is down. The nodes concerned wait until it is back.
- alert: HauloutDegraded
  expr: max by (namespace, reason) (haulout_degraded{ {{- $of }}} {{ $leads }}) == 1
  for: 10m
  labels:
    severity: warning
  annotations:
    summary: Haulout works without one of its functions ({{`{{ $labels.reason }}`}})
    description: Maintenances continue. /readyz?verbose of the leader gives the cause.
- alert: HauloutRecordsNotCopied
  expr: sum by (namespace) (increase(haulout_node_maintenance_writes_refused_total{ {{- $of }}}[15m])) > 1
  for: 30m
  labels:
    severity: warning
  annotations:
    summary: NodeMaintenance objects cannot be written
    description: The status of requests is not updated, and an episode whose Node object is deleted may have no second copy of its record.
- alert: HauloutForcedPowerOff
  expr: sum by (namespace, reason) (increase(haulout_forced_poweroffs_total{ {{- $of }}}[15m])) > 0
  labels:
    severity: warning
  annotations:
    summary: The power of a VM was cut ({{`{{ $labels.reason }}`}})
    description: The guest was not shut down cleanly. Data that it had not written to disk is lost.
- alert: HauloutNodeLeftCordoned
  expr: |
    (max by (node) (kube_node_spec_unschedulable) == 1)
      and on (node) (max by (node) (haulout_node_phase{ {{- $of }},phase="InService"}) == 1)
  for: 1h
  labels:
    severity: warning
  annotations:
    summary: Node {{`{{ $labels.node }}`}} is cordoned without a maintenance
    description: The cordon of a person, or one with the annotation keep-cordoned, stays after an episode. The GPUs of the node are unused.
- alert: HauloutQueueStarved
  expr: max by (namespace) (haulout_queue_depth{ {{- $of }}}) > 0
  for: 2h
  labels:
    severity: warning
  annotations:
    summary: Nodes have been in the queue for two hours
    description: A drain that does not end holds the only slot, or more hosts enter maintenance than the limits allow.
- alert: HauloutPowerOffLimit
  expr: max by (namespace) (haulout_queue_position{ {{- $of }},limit="MAX_POWER_OFFS_PER_HOUR"}) > 0
  for: 1m
  labels:
    severity: warning
  annotations:
    summary: As many VMs as permitted were powered off in the last hour
    description: Further nodes stay in service, and their hosts in Entering maintenance mode. Look whether these maintenances are intended.
- alert: HauloutAbsent
  expr: absent(haulout_build_info{ {{- $of }}})
  for: 5m
  labels:
    severity: critical
  annotations:
    summary: No replica of Haulout is running
    description: Prometheus scrapes no replica. Hosts that enter maintenance mode now wait, and open episodes do not continue.
{{- if .Values.leaderElection.enabled }}
- alert: HauloutNoLeader
  expr: max by (namespace) (leader_election_master_status{ {{- $of }},name={{ include "haulout.leaseName" . | quote }}}) == 0
  for: 2m
  labels:
    severity: critical
  annotations:
    summary: No replica of Haulout leads
    description: Replicas run, but none acts. Hosts that enter maintenance mode now wait.
- alert: HauloutStandbyWithoutVCenter
  expr: |
    max by (namespace, pod) (haulout_vcenter_reachable{ {{- $of }}}) == 0
      and on (namespace, pod) max by (namespace, pod) (leader_election_master_status{ {{- $of }}}) == 0
  for: 15m
  labels:
    severity: warning
  annotations:
    summary: The standby {{`{{ $labels.pod }}`}} cannot reach vCenter
    description: The leader works. If it fails, this replica cannot take over.
{{- end }}
- alert: HauloutNodeNotMaintainable
  expr: max by (namespace, node, reason) (haulout_node_maintainable{ {{- $of }}}) == 0
  for: 1d
  labels:
    severity: info
  annotations:
    summary: Node {{`{{ $labels.node }}`}} would not get through a maintenance as it should ({{`{{ $labels.reason }}`}})
    description: The next maintenance of its host would stop, or shut it down without a drain or a shutdown of its guest. There is time until then.
- alert: HauloutNoNodes
  expr: |
    max by (namespace) (haulout_vcenter_session_up{ {{- $of }}} {{ $leads }}) == 1
      unless on (namespace) max by (namespace) (haulout_node_phase{ {{- $of }}})
  for: 15m
  labels:
    severity: warning
  annotations:
    summary: Haulout manages no node
    description: No Node has the labels of config.gpuNodeLabel, so no maintenance is handled.
- alert: HauloutMaintenanceInProgress
  expr: max by (namespace, node) (haulout_node_phase{ {{- $of }},phase!="InService"}) == 1
  labels:
    severity: none
  annotations:
    summary: Node {{`{{ $labels.node }}`}} is in maintenance
    description: Only a source of inhibitions for KubeNodeUnreachable and KubeNodeNotReady of the same node. Each phase has its own alert.
{{- end }}

{{- define "haulout.recordings" -}}
{{- $of := printf "namespace=%q" (include "haulout.namespace" .) -}}
{{- with .Values.workloadCluster.name -}}{{- $of = printf "%s,workload_cluster=%q" $of . -}}{{- end }}
- record: phase:haulout_phase_duration_seconds:p95_1d
  expr: histogram_quantile(0.95, sum by (namespace, phase, le) (increase(haulout_phase_duration_seconds_bucket{ {{- $of }}}[1d])))
- record: source:haulout_detection_latency_seconds:p95_1d
  expr: histogram_quantile(0.95, sum by (namespace, source, le) (increase(haulout_detection_latency_seconds_bucket{ {{- $of }}}[1d])))
{{- end }}

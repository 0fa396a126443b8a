package main

import (
	"strings"

	"github.com/vmware/govmomi/vim25/types"
)

// evacuationMark in the extraConfig of a VM makes a vCenter shut it down when
// its host enters maintenance mode.
const evacuationMark = "maintenance.vm.evacuation.poweroff"

// remediator is the user of what a vCenter does by itself.
var remediator = caller{User: "vpxd"}

func marked(g *guest) bool {
	for _, o := range g.Config.ExtraConfig {
		if kv := o.GetOptionValue(); kv.Key == evacuationMark {
			on, _ := kv.Value.(string)
			return strings.EqualFold(on, "true")
		}
	}
	return false
}

// shutDownMarked shuts down the marked VMs of a host that enters maintenance
// mode, or powers them off if their guests cannot be asked, and starts each of
// them elsewhere in a later cycle.
func (v *VCenter) shutDownMarked(h *host) {
	if v.spec.Delays.RemediationMs == 0 {
		return
	}
	for _, g := range v.guests {
		if v.hostOf(g) != h || !v.on(g) || !marked(g) && !v.shutsDown(g) {
			continue
		}
		if fault := v.shutdownGuest(g, remediator); fault != nil {
			v.powerOff(g, remediator)
		}
		v.remediate(g, g.boots)
	}
}

// stopAgents powers off the cluster agents of a host that enters maintenance
// mode, as a vCenter does with its own VMs.
func (v *VCenter) stopAgents(h *host) {
	for _, g := range v.guests {
		if g.spec.ClusterAgent && v.hostOf(g) == h && v.on(g) {
			v.powerOff(g, remediator)
		}
	}
}

// remediate starts a VM that was shut down, in each cycle until it runs: on
// another host while its own one is leaving.
func (v *VCenter) remediate(g *guest, boots int) {
	v.later(v.spec.Delays.RemediationMs, func() {
		if v.guests[g.Self] != g || g.boots != boots {
			return
		}
		if target := v.place(g, v.clusterOf(v.hostOf(g)), true); !v.on(g) && target != nil {
			v.powerOn(g, &target.Self, types.DrsBehaviorManual, remediator)
		}
		v.remediate(g, boots)
	})
}

package main

import (
	"testing"

	"github.com/vmware/govmomi/vim25/types"
)

func TestImageKeepsAVMFromAHostOnlyWhileItsDriveIsConnected(t *testing.T) {
	for _, connected := range []bool{false, true} {
		spec := off()
		spec.Clusters[0].Hosts[0].Datastores = append(spec.Clusters[0].Hosts[0].Datastores, "local")
		spec.VMs[0].Image = &ImageSpec{Datastore: "local", Connected: connected}
		b := start(t, spec)
		target, g := b.host("esx2").Reference(), b.lab.v.guests[b.vm("gpu1").Reference()]
		b.lab.v.mu.Lock()
		check := b.lab.v.checkRelocate(g, types.VirtualMachineRelocateSpec{Host: &target})
		b.want(len(g.Datastore), 2)
		b.lab.v.mu.Unlock()
		if connected {
			b.want(b.fails(b.relocate("gpu1", "esx2")), "CannotAccessVmDevice")
			b.want(len(check.Error), 1)
			b.want(len(check.Warning), 0)
			continue
		}
		b.want(len(check.Error), 0)
		b.want(check.Warning[0].LocalizedMessage, "Device 'CD/DVD drive 1' uses backing '[local] images/seed.iso', which is not accessible.")
		b.succeeds(b.relocate("gpu1", "esx2"))
		b.succeeds(b.vm("gpu1").PowerOn(b.ctx))
	}
}

func TestTaskOfAnotherUserOccupiesItsVM(t *testing.T) {
	spec := twoHosts()
	spec.VMs[0].ShutdownMs = 60_000
	b := start(t, spec)
	b.ctl("POST", "/vms/gpu1/task", map[string]any{"method": "CreateSnapshot_Task", "durationMs": 300}, nil)
	b.want(b.askGuest(), "TaskInProgress")
	b.want(b.fails(b.vm("gpu1").PowerOff(b.ctx)), "TaskInProgress")
	b.until("the guest can be asked", func(State) bool { return b.askGuest() == "" })
	b.until("it shuts down", func(s State) bool { return s.vm("gpu1").ShuttingDown })
	b.succeeds(b.vm("gpu1").PowerOff(b.ctx))
	b.until("it is off", func(s State) bool { return !s.vm("gpu1").ShuttingDown })
}

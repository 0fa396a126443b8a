package main

import (
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// messageBytes is the longest message of an event in the journal.
const messageBytes = 4096

// LogUserEvent implements the SOAP method, which the simulator lacks: it posts
// a GeneralUserEvent on a VM, a host, a compute resource, a datacenter or the
// root folder.
func (v *VCenter) LogUserEvent(ctx *simulator.Context, req *types.LogUserEvent) soap.HasFault {
	body := &methods.LogUserEventBody{}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.reg.Get(req.Entity) == nil {
		body.Fault_ = simulator.Fault("", &types.ManagedObjectNotFound{Obj: req.Entity})
		return body
	}
	name := v.nameOf(req.Entity)
	on := "" // the host of a VM
	about := types.EntityEventArgument{Name: name}
	event := &types.GeneralUserEvent{
		GeneralEvent: types.GeneralEvent{
			Message: req.Msg,
			Event:   types.Event{CreatedTime: time.Now(), FullFormattedMessage: "User logged event: " + req.Msg},
		},
		Entity: &types.ManagedEntityEventArgument{EntityEventArgument: about, Entity: req.Entity},
	}
	switch req.Entity.Type {
	case "VirtualMachine":
		event.Vm = &types.VmEventArgument{EntityEventArgument: about, Vm: req.Entity}
		if g := v.guests[req.Entity]; g != nil {
			if h := v.hostOf(g); h != nil {
				on = h.Name
				event.Host = &types.HostEventArgument{EntityEventArgument: types.EntityEventArgument{Name: h.Name}, Host: h.Self}
			}
		}
	case "HostSystem":
		event.Host = &types.HostEventArgument{EntityEventArgument: about, Host: req.Entity}
	case "ComputeResource", "ClusterComputeResource":
		event.ComputeResource = &types.ComputeResourceEventArgument{EntityEventArgument: about, ComputeResource: req.Entity}
	case "Datacenter":
		event.Datacenter = &types.DatacenterEventArgument{EntityEventArgument: about, Datacenter: req.Entity}
	default:
		if req.Entity != v.model.ServiceContent.RootFolder {
			body.Fault_ = simulator.Fault("", &types.InvalidArgument{InvalidProperty: "entity"})
			return body
		}
	}
	manager := v.reg.EventManager()
	ctx.WithLock(manager, func() { manager.PostEvent(ctx, &types.PostEvent{EventToPost: event}) })
	who := callerOf(ctx)
	v.journal.add(Entry{
		Kind: "event", User: who.User, Session: who.Session, Object: name, Ref: req.Entity.Value, Host: on,
		Detail: req.Msg[:min(len(req.Msg), messageBytes)],
	})
	body.Res = &types.LogUserEventResponse{}
	return body
}

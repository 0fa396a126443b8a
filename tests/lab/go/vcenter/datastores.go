package main

import (
	"net/http"
	"slices"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/types"
)

// setDatastore sets on which hosts a datastore is not accessible, and whether it
// is in maintenance mode.
func (c *Control) setDatastore(r *http.Request, body []byte) (any, error) {
	var args struct {
		Inaccessible *[]string `json:"inaccessible"`
		Maintenance  *bool     `json:"maintenance"`
	}
	if err := decode(body, &args); err != nil {
		return nil, err
	}
	c.v.mu.Lock()
	defer c.v.mu.Unlock()
	ds, _ := c.v.reg.FindByName(r.PathValue("datastore"), c.v.datastores()).(*simulator.Datastore)
	if ds == nil {
		return nil, badRequest("datastore %q: not in the inventory", r.PathValue("datastore"))
	}
	if args.Inaccessible != nil {
		hosts, err := c.v.hostRefs(*args.Inaccessible)
		if err != nil {
			return nil, err
		}
		mounts := slices.Clone(ds.Host)
		for i := range mounts {
			mounts[i].MountInfo.Accessible = types.NewBool(!slices.Contains(hosts, mounts[i].Key))
		}
		c.v.set(ds, "host", mounts)
	}
	if args.Maintenance != nil {
		mode := types.DatastoreSummaryMaintenanceModeStateNormal
		if *args.Maintenance {
			mode = types.DatastoreSummaryMaintenanceModeStateInMaintenance
		}
		c.v.set(ds, "summary.maintenanceMode", string(mode))
	}
	c.v.settle()
	return nil, nil
}

func (v *VCenter) datastores() []types.ManagedObjectReference {
	return v.reg.Get(v.dc.DatastoreFolder).(*simulator.Folder).ChildEntity
}

// accesses is true if a host has a datastore and can use it now.
func (v *VCenter) accesses(h *host, ref types.ManagedObjectReference) bool {
	ds, ok := v.reg.Get(ref).(*simulator.Datastore)
	if !ok || !slices.Contains(h.Datastore, ref) || ds.Summary.MaintenanceMode == string(types.DatastoreSummaryMaintenanceModeStateInMaintenance) {
		return false
	}
	return !slices.ContainsFunc(ds.Host, func(m types.DatastoreHostMount) bool {
		return m.Key == h.Self && m.MountInfo.Accessible != nil && !*m.MountInfo.Accessible
	})
}

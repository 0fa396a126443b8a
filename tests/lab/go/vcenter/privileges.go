package main

import (
	"slices"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// Withheld is a privilege that the user does not have on the object with this
// name or moref, or on any object without one. HasPrivilegeOnEntities returns
// that; a call that needs the privilege is not refused. A rule of kind
// soapFault with NoPermission refuses it.
type Withheld struct {
	Privilege string `json:"privilege"`
	Object    string `json:"object,omitempty"`
}

// HasPrivilegeOnEntities implements the SOAP method; the simulator grants
// everything.
func (v *VCenter) HasPrivilegeOnEntities(_ *simulator.Context, req *types.HasPrivilegeOnEntities) soap.HasFault {
	v.mu.Lock()
	defer v.mu.Unlock()
	var told []types.EntityPrivilege
	for _, entity := range req.Entity {
		privilege := types.EntityPrivilege{Entity: entity}
		names := []string{"", entity.Value, v.nameOf(entity)}
		for _, id := range req.PrivId {
			withheld := slices.ContainsFunc(v.withheld, func(w Withheld) bool {
				return w.Privilege == id && slices.Contains(names, w.Object)
			})
			privilege.PrivAvailability = append(privilege.PrivAvailability, types.PrivilegeAvailability{
				PrivId:    id,
				IsGranted: !withheld,
			})
		}
		told = append(told, privilege)
	}
	return &methods.HasPrivilegeOnEntitiesBody{
		Res: &types.HasPrivilegeOnEntitiesResponse{Returnval: told},
	}
}

package main

import (
	"errors"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// attributeSpec is a custom attribute that an administrator defines, for objects
// of one type or of all types, and the values that VMs get.
type attributeSpec struct {
	Name   string            `json:"name"`
	Type   string            `json:"type,omitempty"`
	Values map[string]string `json:"values,omitempty"`
}

// defineAttribute defines it. The mutex is held.
func (v *VCenter) defineAttribute(a attributeSpec) error {
	if a.Name == "" {
		return badRequest("an attribute needs a name")
	}
	manager := v.reg.CustomFieldsManager()
	body := manager.AddCustomFieldDef(v.fresh(), &types.AddCustomFieldDef{This: manager.Self, Name: a.Name, MoType: a.Type})
	if fault := body.Fault(); fault != nil {
		return errors.New(fault.String)
	}
	key := body.(*methods.AddCustomFieldDefBody).Res.Returnval.Key
	for name, value := range a.Values {
		g, err := v.findVM(name)
		if err != nil {
			return err
		}
		set := manager.SetField(v.fresh(), &types.SetField{This: manager.Self, Entity: g.Self, Key: key, Value: value})
		if fault := set.Fault(); fault != nil {
			return errors.New(fault.String)
		}
	}
	return nil
}

// SetField implements the SOAP method by the simulator's own, which panics for an
// unknown object, and adds a line to the journal.
func (v *VCenter) SetField(ctx *simulator.Context, req *types.SetField) soap.HasFault {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.reg.Get(req.Entity) == nil {
		return &methods.SetFieldBody{Fault_: soapFault(&types.ManagedObjectNotFound{Obj: req.Entity})}
	}
	manager := v.reg.CustomFieldsManager()
	name := ""
	for _, field := range manager.Field {
		if field.Key == req.Key && (field.ManagedObjectType == "" || field.ManagedObjectType == req.Entity.Type) {
			name = field.Name
		}
	}
	if name == "" {
		return &methods.SetFieldBody{Fault_: soapFault(&types.InvalidArgument{InvalidProperty: "key"})}
	}
	body := manager.SetField(ctx, req)
	if body.Fault() == nil {
		who := callerOf(ctx)
		v.journal.add(Entry{
			Kind: "attribute", User: who.User, Session: who.Session, Object: v.nameOf(req.Entity), Ref: req.Entity.Value,
			Cause: name, Detail: req.Value[:min(len(req.Value), messageBytes)],
		})
	}
	return body
}

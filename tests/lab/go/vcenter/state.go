package main

import (
	"sort"
	"time"
)

// State is the response of GET /state.
type State struct {
	Rev      int64       `json:"rev"`
	Hosts    []HostState `json:"hosts"`
	VMs      []VMState   `json:"vms"`
	Sessions int         `json:"sessions"`
}

// HostState is a host as the vSphere Client shows it.
type HostState struct {
	Name          string         `json:"name"`
	Ref           string         `json:"ref"`
	Cluster       string         `json:"cluster"`
	Connection    string         `json:"connection"`
	InMaintenance bool           `json:"inMaintenance"`
	Entering      *EnteringState `json:"entering"`
	Devices       []DeviceState  `json:"devices"`
}

// EnteringState is a running Enter Maintenance Mode.
type EnteringState struct {
	Task  string    `json:"task"`
	By    string    `json:"by"`
	Since time.Time `json:"since"`
}

// DeviceState is a device and the VM that has it.
type DeviceState struct {
	DeviceSpec
	UsedBy string `json:"usedBy,omitempty"`
}

// VMState is a VM.
type VMState struct {
	Name           string `json:"name"`
	Ref            string `json:"ref"`
	UUID           string `json:"uuid"`
	Host           string `json:"host"`
	Power          string `json:"power"`
	Boots          int    `json:"boots"`
	Tools          bool   `json:"tools"`
	IgnoreShutdown bool   `json:"ignoreShutdown"`
	ShutdownMs     int    `json:"shutdownMs"`
	ShuttingDown   bool   `json:"shuttingDown"`
	Device         string `json:"device,omitempty"`
	BootHint       string `json:"bootHint,omitempty"`
}

// state is read with the mutex held.
func (v *VCenter) state() State {
	s := State{Rev: v.rev, Hosts: []HostState{}, VMs: []VMState{}, Sessions: len(v.sessions.list())}
	for _, h := range v.hosts {
		hs := HostState{
			Name: h.Name, Ref: h.Self.Value, Cluster: v.clusterOf(h).Name,
			Connection: string(h.Runtime.ConnectionState), InMaintenance: h.Runtime.InMaintenanceMode,
			Devices: []DeviceState{},
		}
		if e := v.entering[h.Self]; e != nil {
			hs.Entering = &EnteringState{Task: e.task.Self.Value, By: e.who.User, Since: e.since}
		}
		for _, d := range h.devices {
			ds := DeviceState{DeviceSpec: d}
			if g := v.holder(h, d.ID, nil); g != nil {
				ds.UsedBy = g.Name
			}
			hs.Devices = append(hs.Devices, ds)
		}
		s.Hosts = append(s.Hosts, hs)
	}
	for _, g := range v.guests {
		vs := VMState{
			Name: g.Name, Ref: g.Self.Value, UUID: g.Config.Uuid,
			Power: string(g.Runtime.PowerState), Boots: g.boots,
			Tools: g.spec.Tools == nil || *g.spec.Tools, IgnoreShutdown: g.spec.IgnoreShutdown, ShutdownMs: g.spec.ShutdownMs,
			ShuttingDown: g.shutdown != nil,
			Device:       g.device, BootHint: g.spec.BootHint,
		}
		if h := v.hostOf(g); h != nil {
			vs.Host = h.Name
		}
		s.VMs = append(s.VMs, vs)
	}
	sort.Slice(s.Hosts, func(i, j int) bool { return s.Hosts[i].Name < s.Hosts[j].Name })
	sort.Slice(s.VMs, func(i, j int) bool {
		a, b := s.VMs[i], s.VMs[j]
		return a.Name < b.Name || a.Name == b.Name && a.Ref < b.Ref
	})
	return s
}

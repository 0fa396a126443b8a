package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
)

// Spec is the initial inventory. Everything in which a test may let two hosts
// or two VMs differ is a field here; everything else is the simulator's
// default.
type Spec struct {
	Datacenter string        `json:"datacenter,omitempty"`
	Clusters   []ClusterSpec `json:"clusters"`
	VMs        []VMSpec      `json:"vms"`
	Delays     Delays        `json:"delays,omitempty"`
	// PushRecentTask is false if WaitForUpdatesEx does not report updates of
	// `recentTask`, which the API has allowed a vCenter since 5.0.
	PushRecentTask *bool `json:"pushRecentTask,omitempty"`
	// PushTaskEnd is false if task histories report new tasks and not their
	// later states: the API documents that new tasks are added to latestPage,
	// and nothing about changes of tasks that are on it.
	PushTaskEnd *bool `json:"pushTaskEnd,omitempty"`
	// DRSKeepsHost is false if DRS places a VM at power on by its own ranking,
	// as a vCenter does, and not on its current host if that is suited.
	DRSKeepsHost *bool `json:"drsKeepsHost,omitempty"`
	// BindStatic also lists fixed-address devices in
	// assignableHardwareBinding. Whether a vCenter does that is not
	// documented, so a client must not rely on it; they are left out by
	// default.
	BindStatic bool `json:"bindStatic,omitempty"`
	// Bulk adds a large generated inventory.
	Bulk *BulkSpec `json:"bulk,omitempty"`
	// Policies are its compute policies. If nil, it has no REST API.
	Policies []PolicySpec `json:"policies,omitempty"`
	// OwnCollectors uses the property collector of this program instead of the
	// simulator's. It is a flag and not part of the inventory.
	OwnCollectors bool `json:"-"`
	// SessionTimeoutMs ends sessions that are idle for longer; 0: never.
	SessionTimeoutMs int `json:"sessionTimeoutMs,omitempty"`
	// RecentTasks is the largest number of tasks in recentTask of an object;
	// 0: the simulator's own 200. A vCenter lists what ended in the last ten
	// minutes, and no host has a hundred maintenance requests in that time.
	RecentTasks int `json:"recentTasks,omitempty"`
}

// PolicySpec is a compute policy, which applies to the VMs with its tag.
type PolicySpec struct {
	Name       string   `json:"name"`
	Capability string   `json:"capability"`
	VMs        []string `json:"vms"`
}

// BulkSpec is the size of a bulk inventory. Its hosts are bulk-0000 and so on,
// its VMs bulk-vm-00000 and so on, distributed over the hosts.
type BulkSpec struct {
	Hosts int `json:"hosts"`
	VMs   int `json:"vms"`
}

// Delays are the durations of tasks in milliseconds.
type Delays struct {
	EnterMs    int `json:"enterMs,omitempty"`
	ExitMs     int `json:"exitMs,omitempty"`
	PowerOnMs  int `json:"powerOnMs,omitempty"`
	PowerOffMs int `json:"powerOffMs,omitempty"`
	RelocateMs int `json:"relocateMs,omitempty"`
	ReconfigMs int `json:"reconfigMs,omitempty"`
	// VmotionMs is the time after which fully automated DRS begins to move a
	// running VM with a vGPU off a host that enters maintenance mode; it does
	// not if 0. The move itself takes RelocateMs.
	VmotionMs int `json:"vmotionMs,omitempty"`
	// RemediationMs is the cycle in which a VM with the evacuation mark is
	// started elsewhere after it was shut down for the maintenance of its host;
	// the mark has no effect if 0. A vCenter's cycle takes three minutes.
	RemediationMs int `json:"remediationMs,omitempty"`
}

// ClusterSpec is one cluster with its DRS settings and hosts.
type ClusterSpec struct {
	Name  string     `json:"name"`
	DRS   DRSSpec    `json:"drs"`
	Hosts []HostSpec `json:"hosts"`
	// FailoverHosts are the hosts that vSphere HA keeps for failover. With any,
	// vSphere HA and its admission control are on.
	FailoverHosts []string   `json:"failoverHosts,omitempty"`
	Rules         []RuleSpec `json:"rules,omitempty"`
}

// RuleSpec is a rule of a cluster: for VMs and hosts a VM-Host rule, for VMs
// alone one that keeps them apart.
type RuleSpec struct {
	Name string   `json:"name"`
	VMs  []string `json:"vms"`
	// Hosts are those on which the VMs must run, NotHosts those on which they
	// must not.
	Hosts    []string `json:"hosts,omitempty"`
	NotHosts []string `json:"notHosts,omitempty"`
	// Optional makes a VM-Host rule a preference.
	Optional bool `json:"optional,omitempty"`
	Disabled bool `json:"disabled,omitempty"`
}

// DRSSpec is the cluster's DRS configuration.
type DRSSpec struct {
	Enabled          bool         `json:"enabled"`
	Behavior         string       `json:"behavior,omitempty"`
	OverridesEnabled *bool        `json:"overridesEnabled,omitempty"`
	VMOverrides      []VMOverride `json:"vmOverrides,omitempty"`
}

// VMOverride is the DRS setting of one VM, named by name, UUID or moref.
type VMOverride struct {
	VM       string `json:"vm"`
	Enabled  *bool  `json:"enabled,omitempty"`
	Behavior string `json:"behavior,omitempty"`
}

// HostSpec is one ESXi host.
type HostSpec struct {
	Name       string       `json:"name"`
	Devices    []DeviceSpec `json:"devices,omitempty"`
	Datastores []string     `json:"datastores,omitempty"`
	// Networks are its port groups; the simulator's "VM Network" if empty. A
	// name that begins with "dvs/" is one of a distributed switch.
	Networks []string `json:"networks,omitempty"`
	// MemoryMB is its memory; 4 GiB if 0.
	MemoryMB int64 `json:"memoryMb,omitempty"`
	// Build is its build of ESXi, not reported if empty.
	Build string `json:"build,omitempty"`
	// VGPUs is how many GPUs it shares among VMs, VGPUProfiles what it offers of
	// them, such as grid_a40-24c.
	VGPUs        int      `json:"vgpus,omitempty"`
	VGPUProfiles []string `json:"vgpuProfiles,omitempty"`
	// HardwareVersion is the newest that it runs: 13 stands for vmx-13, which
	// is what it runs if 0.
	HardwareVersion int `json:"hardwareVersion,omitempty"`
}

// DeviceSpec is one PCI device of a host. Ids are the unsigned numbers that
// lspci prints; the API carries them as signed shorts.
type DeviceSpec struct {
	ID          string `json:"id"`
	Vendor      PCIID  `json:"vendor"`
	Device      PCIID  `json:"device"`
	SubVendor   PCIID  `json:"subVendor,omitempty"`
	SubDevice   PCIID  `json:"subDevice,omitempty"`
	Class       PCIID  `json:"class"`
	Passthrough bool   `json:"passthrough"`
	// Label is the hardware label that an administrator gave it.
	Label string `json:"label,omitempty"`
	// VirtualFunctions makes it a network card with active SR-IOV and so many
	// virtual functions.
	VirtualFunctions int32 `json:"virtualFunctions,omitempty"`
}

// VMSpec is one virtual machine.
type VMSpec struct {
	Name      string  `json:"name"`
	UUID      string  `json:"uuid,omitempty"`
	Folder    string  `json:"folder,omitempty"`
	Host      string  `json:"host"`
	Datastore string  `json:"datastore,omitempty"`
	GPU       GPUSpec `json:"gpu"`
	PoweredOn bool    `json:"poweredOn"`
	Tools     *bool   `json:"tools,omitempty"`
	// ShutdownMs is how long the guest takes to shut down.
	ShutdownMs     int  `json:"shutdownMs,omitempty"`
	IgnoreShutdown bool `json:"ignoreShutdown,omitempty"`
	// Reboots makes the guest boot again ShutdownMs after a request to shut
	// down; the VM stays on.
	Reboots bool `json:"reboots,omitempty"`
	// ToolsStopMs is how long after that request VMware Tools stop while the
	// VM is still on: systemd stops their service early. 0: together with the
	// VM.
	ToolsStopMs int `json:"toolsStopMs,omitempty"`
	// OwnGuest leaves the end of a guest that shuts down to the one who runs it:
	// POST /vms/{vm}/ended tells it.
	OwnGuest bool `json:"ownGuest,omitempty"`
	// DiesAfterMs powers the VM off so long after each power-on, without a
	// task. 0: never.
	DiesAfterMs int `json:"diesAfterMs,omitempty"`
	// Readable is how much of it clients can read: all, noConfig or denied;
	// all if empty.
	Readable Readable `json:"readable,omitempty"`
	// Encrypted gives it a key, as a VM with a vTPM has.
	Encrypted bool `json:"encrypted,omitempty"`
	// ClusterAgent makes it a VM of vSphere Cluster Services, which belongs to
	// the vCenter.
	ClusterAgent bool `json:"clusterAgent,omitempty"`
	// BootHint is not used here; the state document returns it to the
	// simulated guest.
	BootHint    string            `json:"bootHint,omitempty"`
	ExtraConfig map[string]string `json:"extraConfig,omitempty"`
	// Networks are the networks of its cards; it has none if empty.
	Networks []string `json:"networks,omitempty"`
	// SriovCard gives it an SR-IOV network card, on the physical function at
	// this address or, if "automatic", on any.
	SriovCard string `json:"sriovCard,omitempty"`
	// MemoryMB is its memory; 32 MiB if 0. With a passthrough device, all of it
	// is reserved; without one, ReservedMB.
	MemoryMB   int32 `json:"memoryMb,omitempty"`
	ReservedMB int32 `json:"reservedMb,omitempty"`
	// HardwareVersion is 13 for vmx-13, which it has if 0.
	HardwareVersion int `json:"hardwareVersion,omitempty"`
	// Image is in its CD drive; it has no drive if nil.
	Image *ImageSpec `json:"image,omitempty"`
}

// GPUSpec is a VM's passthrough device.
type GPUSpec struct {
	Kind   string `json:"kind"`
	Vendor PCIID  `json:"vendor,omitempty"`
	Device PCIID  `json:"device,omitempty"`
	ID     string `json:"id,omitempty"`
	// SubVendor, SubDevice and Label are what a dynamic device must have in
	// addition; unset, any will do.
	SubVendor PCIID  `json:"subVendor,omitempty"`
	SubDevice PCIID  `json:"subDevice,omitempty"`
	Label     string `json:"label,omitempty"`
	// Profile is that of a vGPU.
	Profile string `json:"profile,omitempty"`
}

// PCIID is a 16-bit PCI id. JSON has no hexadecimal numbers, so a string such
// as "0x10de" is accepted as well as 4318.
type PCIID uint16

// UnmarshalJSON implements json.Unmarshaler.
func (p *PCIID) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		s = string(b)
	}
	n, err := strconv.ParseUint(s, 0, 16)
	if err != nil {
		return fmt.Errorf("PCI id %s: not a 16-bit number", b)
	}
	*p = PCIID(n)
	return nil
}

func readSpec(path string) (*Spec, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	spec := new(Spec)
	if err := decodeStrict(b, spec); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return spec, nil
}

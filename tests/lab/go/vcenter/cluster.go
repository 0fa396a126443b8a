package main

import (
	"fmt"
	"slices"

	"github.com/vmware/govmomi/vim25/types"
)

// setRules sets the cluster's failover hosts, groups and rules. They name hosts
// and VMs, which must exist.
func (v *VCenter) setRules(spec ClusterSpec) error {
	cluster := v.findCluster(spec.Name)
	config := *cluster.ConfigurationEx.(*types.ClusterConfigInfoEx)
	failover, err := v.hostRefs(spec.FailoverHosts)
	if err != nil {
		return fmt.Errorf("failoverHosts: %w", err)
	}
	if len(failover) > 0 {
		config.DasConfig.Enabled = types.NewBool(true)
		config.DasConfig.AdmissionControlEnabled = types.NewBool(true)
		config.DasConfig.AdmissionControlPolicy = &types.ClusterFailoverHostAdmissionControlPolicy{
			FailoverHosts: failover, FailoverLevel: int32(len(failover)),
		}
	}
	config.Rule, config.Group = nil, nil
	for i, rule := range spec.Rules {
		if err := v.addRule(&config, int32(i+1), rule); err != nil {
			return fmt.Errorf("rule %q: %w", rule.Name, err)
		}
	}
	v.set(cluster, "configurationEx", &config)
	return nil
}

func (v *VCenter) addRule(config *types.ClusterConfigInfoEx, key int32, rule RuleSpec) error {
	info := types.ClusterRuleInfo{
		Key: key, Name: rule.Name, Enabled: types.NewBool(!rule.Disabled), Mandatory: types.NewBool(!rule.Optional),
		UserCreated: types.NewBool(true), RuleUuid: fmt.Sprintf("rule-%d", key),
	}
	vms, err := v.vmRefs(rule.VMs)
	if err != nil {
		return err
	}
	if rule.Hosts == nil && rule.NotHosts == nil {
		config.Rule = append(config.Rule, &types.ClusterAntiAffinityRuleSpec{ClusterRuleInfo: info, Vm: vms})
		return nil
	}
	group := func(part string, names []string) (string, error) {
		if names == nil {
			return "", nil
		}
		refs, err := v.hostRefs(names)
		name := rule.Name + " " + part
		config.Group = append(config.Group, &types.ClusterHostGroup{ClusterGroupInfo: types.ClusterGroupInfo{Name: name}, Host: refs})
		return name, err
	}
	config.Group = append(config.Group, &types.ClusterVmGroup{ClusterGroupInfo: types.ClusterGroupInfo{Name: rule.Name + " VMs"}, Vm: vms})
	affine, err := group("hosts", rule.Hosts)
	if err != nil {
		return err
	}
	antiAffine, err := group("other hosts", rule.NotHosts)
	if err != nil {
		return err
	}
	config.Rule = append(config.Rule, &types.ClusterVmHostRuleInfo{
		ClusterRuleInfo: info, VmGroupName: rule.Name + " VMs", AffineHostGroupName: affine, AntiAffineHostGroupName: antiAffine,
	})
	return nil
}

func (v *VCenter) hostRefs(names []string) (refs []types.ManagedObjectReference, err error) {
	for _, name := range names {
		h, err := v.findHost(name)
		if err != nil {
			return nil, err
		}
		refs = append(refs, h.Self)
	}
	return refs, nil
}

func (v *VCenter) vmRefs(names []string) (refs []types.ManagedObjectReference, err error) {
	for _, name := range names {
		g, err := v.findVM(name)
		if err != nil {
			return nil, err
		}
		refs = append(refs, g.Self)
	}
	return refs, nil
}

// violates returns why a mandatory VM-Host rule keeps a VM off a host.
func (v *VCenter) violates(g *guest, h *host) types.BaseMethodFault {
	config := v.clusterOf(h).ConfigurationEx.(*types.ClusterConfigInfoEx)
	vms, hosts := map[string][]types.ManagedObjectReference{}, map[string][]types.ManagedObjectReference{}
	for _, group := range config.Group {
		switch x := group.(type) {
		case *types.ClusterVmGroup:
			vms[x.Name] = x.Vm
		case *types.ClusterHostGroup:
			hosts[x.Name] = x.Host
		}
	}
	for _, rule := range config.Rule {
		x, ok := rule.(*types.ClusterVmHostRuleInfo)
		if !ok || !*x.Enabled || !*x.Mandatory || !slices.Contains(vms[x.VmGroupName], g.Self) {
			continue
		}
		off := x.AffineHostGroupName != "" && !slices.Contains(hosts[x.AffineHostGroupName], h.Self)
		if off || slices.Contains(hosts[x.AntiAffineHostGroupName], h.Self) {
			return &types.VmHostAffinityRuleViolation{VmName: g.Name, HostName: h.Name}
		}
	}
	return nil
}

// keptApart is true if a running VM on a host is in one anti-affinity rule with
// a VM. Only DRS minds.
func (v *VCenter) keptApart(g *guest, h *host) bool {
	config := v.clusterOf(h).ConfigurationEx.(*types.ClusterConfigInfoEx)
	for _, rule := range config.Rule {
		x, ok := rule.(*types.ClusterAntiAffinityRuleSpec)
		if !ok || !*x.Enabled || !slices.Contains(x.Vm, g.Self) {
			continue
		}
		for _, ref := range x.Vm {
			if other := v.guests[ref]; other != nil && other != g && v.on(other) && v.hostOf(other) == h {
				return true
			}
		}
	}
	return false
}

// isFailoverHost is true for a host that vSphere HA keeps for failover.
func (v *VCenter) isFailoverHost(h *host) bool {
	config := v.clusterOf(h).ConfigurationEx.(*types.ClusterConfigInfoEx)
	policy, ok := config.DasConfig.AdmissionControlPolicy.(*types.ClusterFailoverHostAdmissionControlPolicy)
	return ok && slices.Contains(policy.FailoverHosts, h.Self)
}

// unreserved is the memory of a host, in MiB, that no running VM but g has
// reserved.
func (v *VCenter) unreserved(h *host, g *guest) int64 {
	free := h.Hardware.MemorySize >> 20
	for _, other := range v.guests {
		if other != g && v.on(other) && v.hostOf(other) == h {
			free -= int64(other.Summary.Config.MemoryReservation)
		}
	}
	return free
}

// admission returns why the memory of a host does not suffice for a VM.
func (v *VCenter) admission(g *guest, h *host) types.BaseMethodFault {
	free, wanted := v.unreserved(h, g), int64(g.Summary.Config.MemoryReservation)
	if wanted <= free {
		return nil
	}
	return &types.InsufficientMemoryResourcesFault{Unreserved: free << 20, Requested: wanted << 20}
}

package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/vmware/govmomi/vim25/types"
)

// gpuMemoryKB is what a GPU of 48 GB reports: a part of its memory is reserved.
const gpuMemoryKB = 46068 << 10

// setVGPUs gives a host GPUs that are shared among VMs.
func (v *VCenter) setVGPUs(h *host, spec HostSpec) {
	h.vgpus, h.profiles = spec.VGPUs, slices.Clone(spec.VGPUProfiles)
	// A host without them leaves the lists out.
	h.Config.GraphicsInfo, h.Config.SharedPassthruGpuTypes, h.Config.SharedGpuCapabilities = nil, nil, nil
	for i := range spec.VGPUs {
		h.Config.GraphicsInfo = append(h.Config.GraphicsInfo, types.HostGraphicsInfo{
			DeviceName:     "NVIDIA A40",
			VendorName:     "NVIDIA Corporation",
			PciId:          fmt.Sprintf("0000:%02x:00.0", 0x80+i),
			GraphicsType:   string(types.HostGraphicsInfoGraphicsTypeSharedDirect),
			MemorySizeInKB: gpuMemoryKB,
		})
	}
	for _, profile := range spec.VGPUProfiles {
		h.Config.SharedPassthruGpuTypes = append(h.Config.SharedPassthruGpuTypes, profile)
		h.Config.SharedGpuCapabilities = append(h.Config.SharedGpuCapabilities, types.HostSharedGpuCapabilities{
			Vgpu: profile, MigrateSupported: true,
		})
	}
}

// vgpuProfile is the profile of a VM with a virtual GPU, which can be moved
// while it runs; empty without one.
func vgpuProfile(g *guest) string {
	p, _ := passthrough(g)
	if p == nil {
		return ""
	}
	if b, ok := p.Backing.(*types.VirtualPCIPassthroughVmiopBackingInfo); ok {
		return b.Vgpu
	}
	return ""
}

func hasVGPU(g *guest) bool { return vgpuProfile(g) != "" }

// framebuffer is the size of a profile in GB: grid_a40-24c has 24.
func framebuffer(profile string) int {
	size := profile[strings.LastIndex(profile, "-")+1:]
	n, err := strconv.Atoi(strings.TrimRight(size, "abcdefghijklmnopqrstuvwxyz"))
	if err != nil || n < 1 {
		return 1
	}
	return n
}

// gpusFor is how many GPUs a host needs for so many vGPUs of each profile. A
// GPU has vGPUs of one profile at a time, as many as the largest profile has
// room for.
func gpusFor(profiles []string, count map[string]int) int {
	largest := 1
	for _, profile := range profiles {
		largest = max(largest, framebuffer(profile))
	}
	gpus := 0
	for profile, n := range count {
		each := max(1, largest/framebuffer(profile))
		gpus += (n + each - 1) / each
	}
	return gpus
}

// claimVGPU returns why a host has no vGPU for a VM.
func (v *VCenter) claimVGPU(g *guest, h *host) types.BaseMethodFault {
	profile := vgpuProfile(g)
	count := map[string]int{profile: 1}
	for ref, other := range v.guests {
		b := v.busy[ref]
		comes := b != nil && b.target != nil && *b.target == h.Self
		if other != g && hasVGPU(other) && (comes || v.on(other) && v.hostOf(other) == h) {
			count[vgpuProfile(other)]++
		}
	}
	if slices.Contains(h.profiles, profile) && gpusFor(h.profiles, count) <= h.vgpus {
		return nil
	}
	return &noDevice{text: fmt.Sprintf(
		"Insufficient resources. One or more devices (pciPassthru0) required by VM %s are not available on host %s.", g.Name, h.Name)}
}

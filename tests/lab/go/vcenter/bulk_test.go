package main

import (
	"slices"
	"testing"

	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/view"
	"github.com/vmware/govmomi/vim25/mo"
)

func TestBulkClusterHasAtMost96Hosts(t *testing.T) {
	b := start(t, &Spec{Bulk: &BulkSpec{Hosts: 250, VMs: 500}})
	v, err := view.NewManager(b.client.Client).CreateContainerView(b.ctx, b.client.ServiceContent.RootFolder, []string{"ManagedEntity"}, true)
	if err != nil {
		t.Fatal(err)
	}
	var clusters []mo.ClusterComputeResource
	if err = v.Retrieve(b.ctx, []string{"ClusterComputeResource"}, []string{"host"}, &clusters); err != nil {
		t.Fatal(err)
	}
	sizes := make([]int, 0, len(clusters))
	for _, c := range clusters {
		sizes = append(sizes, len(c.Host))
		var hosts []mo.HostSystem
		if err = property.DefaultCollector(b.client.Client).Retrieve(b.ctx, c.Host, []string{"parent"}, &hosts); err != nil {
			t.Fatal(err)
		}
		for _, h := range hosts {
			if *h.Parent != c.Self {
				t.Errorf("%s is in %s and its parent is %s", h.Self.Value, c.Self.Value, h.Parent.Value)
			}
		}
	}
	slices.Sort(sizes)
	if want := []int{58, 96, 96}; !slices.Equal(sizes, want) {
		t.Errorf("clusters of %v hosts, want %v", sizes, want)
	}
}

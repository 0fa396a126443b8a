package main

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/vmware/govmomi/simulator"
	vim "github.com/vmware/govmomi/vim25/types"
)

// filter is one filter of our own collector: the objects that its traversal
// reaches, each with the number of paths to it, and what was reported of them.
type filter struct {
	c     *collector
	self  ref
	spec  vim.PropertyFilterSpec
	roots []*steps
	// wanted are the properties of each type of object; nil for a type that the
	// filter does not report.
	wanted map[reflect.Type]*paths

	began    bool
	nodes    map[ref]map[*steps]*node
	ways     map[ref]int
	reported map[ref]*report
	// touched are the objects that were reached or lost since the last call of
	// look, in that order.
	touched []ref
}

// steps are the traversals from one place.
type steps struct {
	watch *paths
	list  []*step
}

// step is one traversal.
type step struct {
	kind, path string
	skip       bool
	next       *steps
}

// node is an object at one place of the traversal.
type node struct {
	ways  int
	edges map[edge]bool
}

type edge struct {
	to  ref
	via *step
}

// report is what was reported of an object.
type report struct {
	paths *paths
	cells []cell
}

func newFilter(c *collector, spec vim.PropertyFilterSpec) (*filter, vim.BaseMethodFault) {
	f := &filter{c: c, spec: spec, wanted: map[reflect.Type]*paths{}}
	for _, o := range spec.ObjectSet {
		m := maker{named: map[string]*vim.TraversalSpec{}, made: map[*vim.TraversalSpec]*step{}}
		m.name(o.SelectSet)
		s, fault := m.steps(o.SelectSet)
		if fault != nil {
			return nil, fault
		}
		f.roots = append(f.roots, s)
	}
	f.forget()
	return f, nil
}

// maker turns selection specs into steps. A spec may name others and itself: a
// traversal of nested folders is a cycle.
type maker struct {
	named map[string]*vim.TraversalSpec
	made  map[*vim.TraversalSpec]*step
}

func (m *maker) name(set []vim.BaseSelectionSpec) {
	for _, s := range set {
		if t, ok := s.(*vim.TraversalSpec); ok {
			if t.Name != "" {
				m.named[t.Name] = t
			}
			m.name(t.SelectSet)
		}
	}
}

func (m *maker) steps(set []vim.BaseSelectionSpec) (*steps, vim.BaseMethodFault) {
	all := &steps{watch: &paths{}}
	for _, s := range set {
		t, ok := s.(*vim.TraversalSpec)
		if !ok {
			if t = m.named[s.GetSelectionSpec().Name]; t == nil {
				return nil, &vim.InvalidArgument{InvalidProperty: "selectSet"}
			}
		}
		one := m.made[t]
		if one == nil {
			one = &step{kind: t.Type, path: t.Path, skip: t.Skip != nil && *t.Skip}
			m.made[t] = one
			var fault vim.BaseMethodFault
			if one.next, fault = m.steps(t.SelectSet); fault != nil {
				return nil, fault
			}
		}
		all.list = append(all.list, one)
		all.watch.list = append(all.watch.list, one.path)
	}
	return all, nil
}

// forget resets the filter: everything is reported again.
func (f *filter) forget() {
	f.began, f.touched = false, nil
	f.nodes, f.ways, f.reported = map[ref]map[*steps]*node{}, map[ref]int{}, map[ref]*report{}
}

// look returns what has changed since its last call.
func (f *filter) look(ctx *simulator.Context, changed map[ref]*stale) ([]filterUpdate, vim.BaseMethodFault) {
	if !f.began {
		for i, o := range f.spec.ObjectSet {
			if lookup(ctx, o.Obj) == nil {
				if r := f.spec.ReportMissingObjectsInResults; r == nil || !*r {
					f.forget()
					return nil, &vim.ManagedObjectNotFound{Obj: o.Obj}
				}
				continue
			}
			if o.SelectSet == nil || o.Skip == nil || !*o.Skip {
				f.reach(o.Obj)
			}
			f.visit(ctx, o.Obj, f.roots[i])
		}
		f.began = true
	}
	for obj, s := range changed {
		f.turn(ctx, obj, s)
	}
	var news []filterUpdate
	seen := make(map[ref]bool, len(f.touched))
	add := func(obj ref) {
		if seen[obj] {
			return
		}
		seen[obj] = true
		if xml := f.update(ctx, obj, changed[obj]); xml != "" {
			news = append(news, filterUpdate{f.self, xml})
		}
	}
	for _, obj := range f.touched {
		add(obj)
	}
	f.touched = nil
	for obj := range changed {
		add(obj)
	}
	return news, nil
}

// turn repeats the traversals from an object that has changed.
func (f *filter) turn(ctx *simulator.Context, obj ref, s *stale) {
	for at, n := range f.nodes[obj] {
		for _, one := range at.list {
			if !s.gone && !s.covers(one.path) {
				continue
			}
			fresh := map[edge]bool{}
			if !s.gone {
				for _, to := range refs(ctx, obj, one.kind, one.path) {
					fresh[edge{to, one}] = true
				}
			}
			for e := range n.edges {
				if e.via == one && !fresh[e] {
					delete(n.edges, e)
					f.leave(e)
				}
			}
			for e := range fresh {
				if !n.edges[e] {
					n.edges[e] = true
					f.follow(ctx, e)
				}
			}
		}
	}
	if s.gone && f.ways[obj] > 0 {
		delete(f.ways, obj)
		f.touched = append(f.touched, obj)
	}
}

func (f *filter) visit(ctx *simulator.Context, obj ref, at *steps) {
	if len(at.list) == 0 {
		return
	}
	if n := f.nodes[obj][at]; n != nil {
		n.ways++
		return
	}
	n := &node{ways: 1, edges: map[edge]bool{}}
	if f.nodes[obj] == nil {
		f.nodes[obj] = map[*steps]*node{}
	}
	f.nodes[obj][at] = n
	f.c.watch(obj, at.watch)
	for _, one := range at.list {
		for _, to := range refs(ctx, obj, one.kind, one.path) {
			if e := (edge{to, one}); !n.edges[e] {
				n.edges[e] = true
				f.follow(ctx, e)
			}
		}
	}
}

func (f *filter) follow(ctx *simulator.Context, e edge) {
	if !e.via.skip {
		f.reach(e.to)
	}
	f.visit(ctx, e.to, e.via.next)
}

func (f *filter) reach(obj ref) {
	f.ways[obj]++
	f.touched = append(f.touched, obj)
}

// leave removes one path to an object, and with the last one all traversals
// from it.
func (f *filter) leave(e edge) {
	if !e.via.skip && f.ways[e.to] > 0 {
		if f.ways[e.to]--; f.ways[e.to] == 0 {
			delete(f.ways, e.to)
		}
		f.touched = append(f.touched, e.to)
	}
	n := f.nodes[e.to][e.via.next]
	if n == nil {
		return
	}
	if n.ways--; n.ways > 0 {
		return
	}
	delete(f.nodes[e.to], e.via.next)
	if len(f.nodes[e.to]) == 0 {
		delete(f.nodes, e.to)
	}
	f.c.unwatch(e.to, e.via.next.watch)
	for further := range n.edges {
		f.leave(further)
	}
}

// update encodes what is reported of an object; it is empty if there is
// nothing.
func (f *filter) update(ctx *simulator.Context, obj ref, s *stale) string {
	before := f.reported[obj]
	gone := func() string {
		if before == nil {
			return ""
		}
		delete(f.reported, obj)
		f.c.unwatch(obj, before.paths)
		return objectUpdate("leave", obj, "")
	}
	if f.ways[obj] == 0 || s != nil && s.gone {
		return gone()
	}
	if before == nil {
		wanted := f.paths(ctx, obj)
		if wanted == nil {
			return ""
		}
		f.c.watch(obj, wanted)
		cells, ok := f.c.values.read(ctx, obj, wanted.list)
		if !ok {
			f.c.unwatch(obj, wanted)
			return ""
		}
		f.reported[obj] = &report{wanted, cells}
		var changes strings.Builder
		for _, c := range cells {
			if c.state == cellSet {
				changes.WriteString(c.xml)
			}
		}
		for _, c := range cells {
			if c.state == cellMissing {
				changes.WriteString(c.xml)
			}
		}
		return objectUpdate("enter", obj, changes.String())
	}
	if s == nil {
		return ""
	}
	var changes strings.Builder
	for i, p := range before.paths.list {
		if !s.covers(p) {
			continue
		}
		cells, ok := f.c.values.read(ctx, obj, before.paths.list[i:i+1])
		if !ok {
			return gone()
		}
		if cells[0] != before.cells[i] {
			before.cells[i] = cells[0]
			changes.WriteString(cells[0].xml)
		}
	}
	if changes.Len() == 0 {
		return ""
	}
	return objectUpdate("modify", obj, changes.String())
}

func objectUpdate(kind string, obj ref, changes string) string {
	return fmt.Sprintf(`<objectSet><kind>%s</kind><obj type="%s">%s</obj>%s</objectSet>`, kind, obj.Type, escaped(obj.Value), changes)
}

// paths are the properties that the filter reports of an object.
func (f *filter) paths(ctx *simulator.Context, obj ref) *paths {
	item := lookup(ctx, obj)
	if item == nil {
		return nil
	}
	rtype := managedType(item)
	if p, ok := f.wanted[rtype]; ok {
		return p
	}
	var p *paths
	for _, set := range f.spec.PropSet {
		if !isA(rtype, set.Type) {
			continue
		}
		if p == nil {
			p = &paths{}
		}
		list := set.PathSet
		if set.All != nil && *set.All {
			list = every(rtype)
		}
		for _, path := range list {
			if !slices.Contains(p.list, path) {
				p.list = append(p.list, path)
			}
		}
	}
	f.wanted[rtype] = p
	return p
}

// every returns the names of all properties of a type.
func every(rtype reflect.Type) []string {
	var list []string
	for i := range rtype.NumField() {
		switch field := rtype.Field(i); {
		case field.Name == "Self":
		case field.Anonymous:
			list = append(list, every(field.Type)...)
		default:
			list = append(list, strings.ToLower(field.Name[:1])+field.Name[1:])
		}
	}
	return list
}

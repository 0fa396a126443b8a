package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	vim "github.com/vmware/govmomi/vim25/types"
)

// pageSize is the largest number of object updates in one set.
const pageSize = 100

// collectors is a second implementation of the property collector. The
// simulator's own reads all objects of all filters again on each change, which
// takes hundreds of milliseconds with 2,500 hosts. This one keeps what each
// filter has reported, and reads only what has changed. It checks versions as a
// vCenter does: a wrong version is refused, and a response that was lost can be
// requested again.
//
// The simulator reports each change through handlers in its registry, which run
// with the lock of the changed object held. So nothing is read there: objects
// are marked, and the waiting call reads them.
type collectors struct {
	v      *VCenter
	values *values

	mu        sync.Mutex
	open      map[*simulator.PropertyCollector]*collector
	tasks     []*simulator.Task
	histories map[*TaskHistoryCollector]bool
}

func newCollectors(v *VCenter) *collectors {
	return &collectors{
		v: v, values: newValues(v.visibility, &v.stale),
		open:      map[*simulator.PropertyCollector]*collector{},
		histories: map[*TaskHistoryCollector]bool{},
	}
}

// Reference is the name under which the registry keeps its handler.
func (cs *collectors) Reference() ref {
	return ref{Type: "PropertyCollector", Value: "haulout-lab-collectors"}
}

// PutObject is called for each object that is added to the inventory.
func (cs *collectors) PutObject(_ *simulator.Context, obj mo.Reference) {
	cs.values.changed(obj.Reference(), nil)
	cs.mark(obj.Reference(), nil, false)
	if task, ok := obj.(*simulator.Task); ok {
		cs.record(task)
	}
}

// UpdateObject is called for each change.
func (cs *collectors) UpdateObject(_ *simulator.Context, obj mo.Reference, changes []vim.PropertyChange) {
	suppress := cs.v.suppression.isOn()
	var names []string
	for _, change := range changes {
		names = append(names, change.Name)
	}
	cs.values.changed(obj.Reference(), names)
	if suppress {
		names = slices.DeleteFunc(names, func(name string) bool { return name == "recentTask" })
	}
	if len(names) > 0 {
		cs.mark(obj.Reference(), names, false)
	}
	if obj.Reference().Type == "Task" && slices.Contains(names, "info.state") {
		cs.retell(obj.Reference())
	}
}

// RemoveObject is called for each object that is removed, before the registry
// removes it.
func (cs *collectors) RemoveObject(_ *simulator.Context, obj ref) {
	cs.values.gone(obj)
	cs.mark(obj, nil, true)
}

func (cs *collectors) mark(obj ref, names []string, gone bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, c := range cs.open {
		c.mark(obj, names, gone)
	}
}

// of returns the collector for one of the simulator's collectors.
func (cs *collectors) of(pc *simulator.PropertyCollector) *collector {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.open[pc]
	if c == nil {
		c = &collector{
			values:  cs.values,
			watched: map[ref]map[*paths]int{},
			stale:   map[ref]*stale{},
			wake:    make(chan struct{}, 1),
		}
		cs.open[pc] = c
	}
	return c
}

// cancel ends the waiting call, if there is one.
func (cs *collectors) cancel(pc *simulator.PropertyCollector) {
	cs.mu.Lock()
	c := cs.open[pc]
	cs.mu.Unlock()
	if c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.cancel != nil {
			close(c.cancel)
			c.cancel = nil
		}
	}
}

// drop removes a collector. A waiting call gets no more updates; it ends,
// unless silent is set.
func (cs *collectors) drop(pc *simulator.PropertyCollector, silent bool) {
	if !silent {
		cs.cancel(pc)
	}
	cs.mu.Lock()
	delete(cs.open, pc)
	cs.mu.Unlock()
}

// paths are the properties that one filter reads. The pointer identifies the
// filter.
type paths struct{ list []string }

func (p *paths) covers(names []string) bool {
	for _, path := range p.list {
		for _, name := range names {
			if covers(path, name) {
				return true
			}
		}
	}
	return false
}

// stale is what has changed in an object since it was read.
type stale struct {
	// all is true for an object that was added or removed.
	all   bool
	gone  bool
	names []string
}

func (s *stale) covers(path string) bool {
	return s.all || slices.ContainsFunc(s.names, func(name string) bool { return covers(path, name) })
}

// collector is one property collector.
type collector struct {
	values *values

	// calls allows one call at a time, as a vCenter does.
	calls sync.Mutex
	// number is the last version that was sent. base is the version that the
	// pages of the last response continue from, and sent is the page that was
	// sent last.
	number int
	base   string
	pages  []page
	sent   int

	// mu is a leaf lock: it is taken with locks of objects held.
	mu      sync.Mutex
	filters []*filter
	watched map[ref]map[*paths]int
	stale   map[ref]*stale
	wake    chan struct{}
	cancel  chan struct{}
}

// page is a response as it was sent, so that it can be sent again.
type page struct{ version, xml string }

func (c *collector) mark(obj ref, names []string, gone bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	relevant := false
	for p := range c.watched[obj] {
		relevant = relevant || names == nil || p.covers(names)
	}
	if !relevant {
		return
	}
	s := c.stale[obj]
	if s == nil {
		s = &stale{}
		c.stale[obj] = s
	}
	s.all = s.all || names == nil
	s.gone = s.gone || gone
	for _, name := range names {
		if !slices.Contains(s.names, name) {
			s.names = append(s.names, name)
		}
	}
	c.rouse()
}

func (c *collector) rouse() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// watch is called before the objects are read: what changes in between is read
// once more, and not missed.
func (c *collector) watch(obj ref, p *paths) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watched[obj] == nil {
		c.watched[obj] = map[*paths]int{}
	}
	c.watched[obj][p]++
}

func (c *collector) unwatch(obj ref, p *paths) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watched[obj][p]--; c.watched[obj][p] == 0 {
		delete(c.watched[obj], p)
	}
	if len(c.watched[obj]) == 0 {
		delete(c.watched, obj)
	}
}

func (c *collector) take() (map[ref]*stale, []*filter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := c.stale
	c.stale = map[ref]*stale{}
	return taken, slices.Clone(c.filters)
}

// CreateFilter implements the SOAP method.
func (v *VCenter) CreateFilter(ctx *simulator.Context, req *vim.CreateFilter) soap.HasFault {
	pc, ok := ctx.Session.Get(req.This).(*simulator.PropertyCollector)
	if !ok {
		return &methods.CreateFilterBody{Fault_: soapFault(&vim.ManagedObjectNotFound{Obj: req.This})}
	}
	c := v.collectors.of(pc)
	f, fault := newFilter(c, req.Spec)
	if fault != nil {
		return &methods.CreateFilterBody{Fault_: soapFault(fault)}
	}
	body := pc.CreateFilter(ctx, req)
	f.self = body.(*methods.CreateFilterBody).Res.Returnval
	c.mu.Lock()
	defer c.mu.Unlock()
	c.filters = append(c.filters, f)
	c.rouse()
	return body
}

// DestroyPropertyFilter implements the SOAP method.
func (v *VCenter) DestroyPropertyFilter(ctx *simulator.Context, req *vim.DestroyPropertyFilter) soap.HasFault {
	pf, ok := ctx.Session.Get(req.This).(*simulator.PropertyFilter)
	if !ok {
		return &methods.DestroyPropertyFilterBody{Fault_: soapFault(&vim.ManagedObjectNotFound{Obj: req.This})}
	}
	v.collectors.mu.Lock()
	for _, c := range v.collectors.open {
		c.mu.Lock()
		c.filters = slices.DeleteFunc(c.filters, func(f *filter) bool { return f.self == req.This })
		c.mu.Unlock()
	}
	v.collectors.mu.Unlock()
	return pf.DestroyPropertyFilter(ctx, req)
}

// rawUpdates is a response that is already XML.
type rawUpdates struct {
	Res    *rawResponse `xml:"WaitForUpdatesExResponse"`
	Fault_ *soap.Fault  `xml:"-"`
}

// Fault implements soap.HasFault.
func (b *rawUpdates) Fault() *soap.Fault { return b.Fault_ }

type rawResponse struct {
	XML string `xml:",innerxml"`
}

func nothing() soap.HasFault { return &rawUpdates{Res: &rawResponse{}} }

func (p page) answer() soap.HasFault { return &rawUpdates{Res: &rawResponse{XML: p.xml}} }

// wait implements WaitForUpdatesEx.
func (c *collector) wait(ctx *simulator.Context, req *vim.WaitForUpdatesEx) soap.HasFault {
	c.calls.Lock()
	defer c.calls.Unlock()
	if again, fault := c.lead(req.Version); fault != nil {
		return &rawUpdates{Fault_: soapFault(fault)}
	} else if again != nil {
		return again.answer()
	}
	size, once, end := pageSize, false, (<-chan time.Time)(nil)
	if o := req.Options; o != nil {
		if o.MaxObjectUpdates > 0 {
			size = min(size, int(o.MaxObjectUpdates))
		}
		if o.MaxWaitSeconds != nil {
			once = *o.MaxWaitSeconds == 0
			timer := time.NewTimer(time.Duration(*o.MaxWaitSeconds) * time.Second)
			defer timer.Stop()
			end = timer.C
		}
	}
	cancel := make(chan struct{})
	c.mu.Lock()
	c.cancel = cancel
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		if c.cancel == cancel {
			c.cancel = nil
		}
		c.mu.Unlock()
	}()
	for {
		stale, filters := c.take()
		var news []filterUpdate
		for _, f := range filters {
			updates, fault := f.look(ctx, stale)
			if fault != nil {
				return &rawUpdates{Fault_: soapFault(fault)}
			}
			news = append(news, updates...)
		}
		if len(news) > 0 || req.Version == "" {
			c.base, c.pages, c.sent = req.Version, c.write(news, size), 0
			return c.pages[0].answer()
		}
		if once {
			return nothing()
		}
		select {
		case <-c.wake:
		case <-end:
			return nothing()
		case <-cancel:
			return &rawUpdates{Fault_: soapFault(&vim.RequestCanceled{})}
		}
	}
}

// lead returns what a version requests: a page that was already made, a fault,
// or neither, which means new updates. A truncated version can be used once; a
// complete one can be used again.
func (c *collector) lead(version string) (*page, vim.BaseMethodFault) {
	last := len(c.pages) - 1
	switch {
	case version == "":
		c.mu.Lock()
		for _, f := range c.filters {
			f.forget()
		}
		clear(c.watched)
		clear(c.stale)
		c.mu.Unlock()
		c.base, c.pages, c.sent = "", nil, 0
		return nil, nil
	case last >= 0 && version == c.base:
		c.sent = 0
		return &c.pages[0], nil
	case last >= 0 && c.sent < last && version == c.pages[c.sent].version:
		c.sent++
		return &c.pages[c.sent], nil
	case last >= 0 && c.sent == last && version == c.pages[last].version:
		c.base, c.pages = version, nil
		return nil, nil
	case last < 0 && version == c.base:
		return nil, nil
	}
	return nil, &vim.InvalidCollectorVersion{}
}

// filterUpdate is the update of one filter.
type filterUpdate struct {
	filter ref
	xml    string
}

// write makes the pages of a response.
func (c *collector) write(news []filterUpdate, size int) []page {
	var pages []page
	for {
		n := min(size, len(news))
		c.number++
		version := strconv.Itoa(c.number)
		var b strings.Builder
		fmt.Fprintf(&b, "<returnval><version>%s</version>", version)
		for i, update := range news[:n] {
			if i == 0 || news[i-1].filter != update.filter {
				fmt.Fprintf(&b, `<filterSet><filter type="PropertyFilter">%s</filter>`, escaped(update.filter.Value))
			}
			b.WriteString(update.xml)
			if i == n-1 || news[i+1].filter != update.filter {
				b.WriteString("</filterSet>")
			}
		}
		if news = news[n:]; len(news) > 0 {
			b.WriteString("<truncated>true</truncated>")
		}
		b.WriteString("</returnval>")
		pages = append(pages, page{version, b.String()})
		if len(news) == 0 {
			return pages
		}
	}
}

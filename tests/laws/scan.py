import sys, importlib, collections, time, re
from laws import laws
room=sys.argv[1]; only=sys.argv[2] if len(sys.argv)>2 else ''; full='-v' in sys.argv
mod=importlib.import_module('laws.'+room)
total=0
for c in mod.CASES:
    if only and only!='-v' and only not in c.name: continue
    t=time.time(); out=[]
    fs=[(law,(lambda f=f: f(c,3))) for law,f in laws.LAWS.items()]+[('scale',(lambda e=e: laws.scale(c,3,e))) for e in (200,-200,150,-150)]
    for law,f in fs:
        try: out+= [(law,v) for v in f()]
        except Exception as e:
            import traceback; traceback.print_exc(limit=-3); out.append((law,f"LAW CRASH: {e!r}"))
        if law=='valid' and out: break
    out=list(dict.fromkeys(out)); total+=len(out)
    print(f"## {c.name} {time.time()-t:.2f}s {len(out)}")
    groups=collections.OrderedDict()
    for law,v in out:
        what,_,rest=v.partition(': ')
        arg=re.split(r' = | as | × | with | in | that ',what)[0] if law!='degenerate' else what.split(':')[0]
        m=re.match(r'(\w*(Error|Warning))',rest)
        kind=m.group(1) if m else ('taken' if rest.startswith('taken') else 'value')
        groups.setdefault((law,arg if law in('wrong types','kinds') else '',kind),[]).append(v)
    for (law,arg,kind),vs in groups.items():
        if full:
            for v in vs: print(f"    [{law}] {v[:220]}")
        else: print(f"    [{law}] {kind} ×{len(vs)}: {vs[0][:170]}" + (" || "+"; ".join(x.split(':')[0][:30] for x in vs[1:7]) if len(vs)>1 else ''))
print("TOTAL",total)

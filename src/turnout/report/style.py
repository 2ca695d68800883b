"""The page's style sheet and script. No fonts, files or addresses from outside: the report works offline."""

# Okabe and Ito's colours, told apart by people with any colour vision; lighter ones on a dark page.
CHART_CSS = """
:root{--paper:#fff;--ink:#1c2430;--soft:#5b6676;--rule:#e3e7ed;--edge:#9aa5b4;--low:#d55e00;--bar:#0072b2;
--s0:#0072b2;--s1:#d55e00;--s2:#009e73;--s3:#b5578f;--s4:#c98500;--s5:#3a9fdb;--s6:#4d4d4d;--s7:#7a5cc2}
@media (prefers-color-scheme:dark){:root{--paper:#151a21;--ink:#e8edf4;--soft:#9ba8b8;--rule:#2a323d;--edge:#5d6979;
--low:#f08a4b;--bar:#4aa8e0;--s0:#4aa8e0;--s1:#f08a4b;--s2:#2fc79a;--s3:#e08cbf;--s4:#edb33a;--s5:#8fd0f7;--s6:#c3c9d1;
--s7:#ac93ee}}
@media print{:root{--paper:#fff;--ink:#1c2430;--soft:#5b6676;--rule:#e3e7ed;--edge:#9aa5b4;--low:#d55e00;--bar:#0072b2;
--s0:#0072b2;--s1:#d55e00;--s2:#009e73;--s3:#b5578f;--s4:#c98500;--s5:#3a9fdb;--s6:#4d4d4d;--s7:#7a5cc2}}
svg text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--soft)}
svg .title{font-size:14px;font-weight:600;fill:var(--ink)}svg .name{fill:var(--ink)}
svg .paper{fill:var(--paper)}svg .grid{stroke:var(--rule)}svg .axis{stroke:var(--edge)}
svg .mean{stroke:var(--ink);stroke-dasharray:4 3}svg .bar{fill:var(--bar)}svg .bar.low{fill:var(--low)}
svg .line{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
svg .key{stroke-width:3}svg .dot{fill:currentColor}svg .band{fill:currentColor;opacity:.15}
.s0{color:var(--s0)}.s1{color:var(--s1)}.s2{color:var(--s2)}.s3{color:var(--s3)}.s4{color:var(--s4)}.s5{color:var(--s5)}
.s6{color:var(--s6)}.s7{color:var(--s7)}svg .d1{stroke-dasharray:7 4}svg .d2{stroke-dasharray:2 4}
"""

PAGE_CSS = """
:root{color-scheme:light dark;--page:#f4f6f9}@media (prefers-color-scheme:dark){:root{--page:#0e1217}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1180px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:28px;line-height:1.2;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:18px;margin:36px 0 10px}p{margin:0 0 10px}.soft{color:var(--soft)}
.kinds{display:flex;flex-wrap:wrap;gap:6px;margin:10px 0 0}
.kinds span{border:1px solid var(--rule);border-radius:99px;padding:1px 10px;font-size:13px;background:var(--paper)}
.kinds i{color:var(--soft);font-style:normal}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(112px,1fr));gap:12px;margin:20px 0 0}
.facts div{background:var(--paper);border:1px solid var(--rule);border-radius:10px;padding:12px}
.facts .main{grid-column:span 2}
.facts b{display:block;white-space:nowrap;font-size:18px;line-height:1.25;font-variant-numeric:tabular-nums}
.facts span{overflow-wrap:anywhere;color:var(--soft);font-size:13px}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,440px),1fr));gap:14px}
figure{margin:0;background:var(--paper);border:1px solid var(--rule);border-radius:10px;padding:12px;min-width:0}
.below,.map+.grid,figure+figure.map{margin-top:14px}.grid figure+figure.map{margin-top:0}
svg.chart{display:block;width:100%;height:auto;touch-action:pan-y}svg.spark{width:64px;height:22px;vertical-align:middle}
.scroll{overflow-x:auto;background:var(--paper);border:1px solid var(--rule);border-radius:10px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:8px;font-size:14px;text-align:right;white-space:nowrap;border-top:1px solid var(--rule)}
tr:first-child>th{border-top:0}th{font-weight:600;font-size:13px;color:var(--soft);vertical-align:bottom;white-space:normal}
th:first-child,td:first-child,.words td,.words th{text-align:left}
table:not(.words) td:first-child{min-width:140px;white-space:normal}tr.leading td{font-weight:650}
.words td{white-space:normal;overflow-wrap:anywhere}td i{display:inline-block;width:11px;height:11px;border-radius:3px;
background:currentColor;margin-right:8px;vertical-align:-1px}td i+b{font-weight:inherit}
figure p{margin:8px 0 0;font-size:13px}
figcaption{display:flex;flex-wrap:wrap;justify-content:space-between;gap:4px 16px;font-size:14px;margin-bottom:8px}
.keys{display:flex;flex-wrap:wrap;gap:4px 16px;color:var(--soft);font-size:13px}
.key{display:inline-flex;align-items:center;gap:6px}
.key i{width:12px;height:12px;border-radius:3px}
.key i.none{border:1px solid var(--edge)}.key i.ramp{width:70px}
.plot{display:grid;grid-template-columns:20px minmax(0,1fr);gap:4px}
.side{display:flex;align-items:center;justify-content:center;color:var(--soft);font-size:12px}
.side span{writing-mode:vertical-rl;transform:rotate(180deg);white-space:nowrap}
img.heat{display:block;width:100%;image-rendering:pixelated;border:1px solid var(--rule)}
.square img.heat{aspect-ratio:1}.square .plot{max-width:520px;margin:0 auto}
.ends{display:flex;justify-content:space-between;color:var(--soft);font-size:12px;margin-top:4px}
details{background:var(--paper);border:1px solid var(--rule);border-radius:10px;padding:10px 14px;margin-top:10px}
details>*:not(summary){margin-top:10px}summary{cursor:pointer}
pre{margin:0;overflow-x:auto;font:13px/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
#tip{position:fixed;z-index:9;pointer-events:none;display:none;background:var(--paper);border:1px solid var(--edge);
border-radius:8px;padding:6px 10px;font-size:13px;line-height:1.45;box-shadow:0 4px 14px #0003;max-width:320px}
#tip div{display:flex;gap:14px;justify-content:space-between}#tip span::before{content:"● "}
#tip em{font-style:normal;color:var(--ink);font-variant-numeric:tabular-nums;white-space:nowrap}
footer{margin-top:40px;color:var(--soft);font-size:13px}
@media (max-width:600px){main{padding:18px 12px 40px}h1{font-size:23px}figure{padding:8px 4px}figcaption{padding:0 6px}
.facts{grid-template-columns:1fr 1fr;gap:8px}.facts b{font-size:18px}th,td{padding:7px 9px}}
@media print{body{background:#fff}main{max-width:none;padding:0}figure,.facts div,tr{break-inside:avoid}
h2{break-after:avoid}.grid{grid-template-columns:1fr 1fr}*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
"""

SCRIPT = """
const tip=document.createElement('div');tip.id='tip';document.body.append(tip);
function put(e){tip.style.display='block';const r=tip.getBoundingClientRect();
let x=e.clientX+16,y=e.clientY+16;if(x+r.width>innerWidth-8)x=Math.max(8,e.clientX-r.width-16);
if(y+r.height>innerHeight-8)y=Math.max(8,e.clientY-r.height-16);tip.style.left=x+'px';tip.style.top=y+'px'}
function hide(){tip.style.display='none'}
function row(name,value,kind){const d=document.createElement('div'),v=document.createElement('em');
if(name){const n=document.createElement('span');n.textContent=name;n.className=kind;d.append(n)}
v.textContent=value;d.append(v);tip.append(d)}
for(const svg of document.querySelectorAll('svg[data-chart]')){const data=JSON.parse(svg.dataset.chart);
const mark=svg.querySelector('.cursor'),ns='http://www.w3.org/2000/svg';
svg.addEventListener('pointermove',e=>{const p=new DOMPoint(e.clientX,e.clientY)
.matrixTransform(svg.getScreenCTM().inverse());const hits=[];
for(const s of data.rows){let i=0;for(let j=1;j<s.x.length;j++)if(Math.abs(s.x[j]-p.x)<Math.abs(s.x[i]-p.x))i=j;
if(Math.abs(s.x[i]-p.x)<=40)hits.push([s,i])}
mark.replaceChildren();tip.replaceChildren();if(!hits.length)return hide();
const near=hits.reduce((a,b)=>Math.abs(b[0].x[b[1]]-p.x)<Math.abs(a[0].x[a[1]]-p.x)?b:a);
row('',data.label+' '+near[0].l[near[1]]);hits.sort((a,b)=>a[0].y[a[1]]-b[0].y[b[1]]);
for(const[s,i]of hits){row(s.n,s.t[i],s.c.split(' ')[0]);const c=document.createElementNS(ns,'circle');
c.setAttribute('class','dot '+s.c);c.setAttribute('cx',s.x[i]);c.setAttribute('cy',s.y[i]);c.setAttribute('r',3.5);
mark.append(c)}put(e)});
svg.addEventListener('pointerleave',()=>{mark.replaceChildren();hide()})}
for(const img of document.querySelectorAll('img[data-cells]')){const cells=atob(img.dataset.cells);
const[k,r,dx,dy,x0,most]=img.dataset.shape.split(',').map(Number),names=JSON.parse(img.dataset.names);
const span=(i,d,from)=>{const a=from+Math.floor(i*d),b=from+Math.ceil((i+1)*d)-1;return a===b?''+a:a+'–'+b};
img.addEventListener('pointermove',e=>{const b=img.getBoundingClientRect();
const i=Math.min(k-1,Math.max(0,Math.floor((e.clientX-b.left)/b.width*k)));
const j=Math.min(r-1,Math.max(0,Math.floor((e.clientY-b.top)/b.height*r)));
const c=cells.charCodeAt(j*k+i);tip.replaceChildren();
row('',names[0]+' '+span(j,dy,0)+', '+names[1]+' '+span(i,dx,x0));
row('',c===0?names[2]:c===1?names[3]:most===1?Math.round((c-2)/63*100)+' %':''+Math.round((c-2)/63*most));put(e)});
img.addEventListener('pointerleave',hide)}
"""

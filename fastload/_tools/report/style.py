"""The page's style sheet."""

from __future__ import annotations

STYLE = """
* { box-sizing: border-box; margin: 0; }
body { background: var(--page); color: var(--text); -webkit-text-size-adjust: 100%;
  font: 16px/1.5 system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 24px 20px 48px; display: grid; gap: 20px; }
main > * { min-width: 0; }
.verdict { border-left: 6px solid var(--good); background: var(--card); border-radius: 10px; padding: 20px 24px; }
.verdict.look { border-color: var(--look); } .verdict.bad { border-color: var(--bad); }
.brand { color: var(--muted); font-size: 13px; letter-spacing: .02em; }
h1 { font-size: 30px; line-height: 1.2; margin: 2px 0 6px; color: var(--good); }
.look h1 { color: var(--look); } .bad h1 { color: var(--bad); }
.says { font-size: 18px; max-width: 62em; overflow-wrap: anywhere; }
h2 { font-size: 17px; line-height: 1.3; } h2.run { margin-top: 12px; font-size: 20px; overflow-wrap: anywhere; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 1px;
  background: var(--grid); border-radius: 10px; overflow: hidden; }
.figures div { background: var(--card); padding: 14px 18px; }
.figures dt, .figures p { color: var(--muted); font-size: 13px; line-height: 1.4; }
.figures dd { margin: 0; font-size: 24px; line-height: 1.3; font-weight: 600; font-variant-numeric: tabular-nums; }
figure, .card { background: var(--card); border-radius: 10px; padding: 18px 20px; }
figcaption p { color: var(--muted); font-size: 14px; margin-bottom: 10px; }
.plot { display: block; width: 100%; height: auto; font-family: inherit; }
.plot text { font-variant-numeric: tabular-nums; }
.phone { display: none; }
table { width: 100%; border-collapse: collapse; margin-top: 8px; font-size: 15px; line-height: 1.45; }
th { text-align: left; color: var(--muted); font-weight: 500; font-size: 13px; padding: 4px 16px 4px 0;
  border-bottom: 1px solid var(--grid); }
td { vertical-align: top; padding: 12px 16px 12px 0; border-bottom: 1px solid var(--grid); overflow-wrap: anywhere; }
tr:last-child td { border-bottom: 0; padding-bottom: 2px; }
td:nth-child(1) { width: 24%; } td:nth-child(2) { width: 17%; } td:nth-child(3) { width: 30%; }
.kind { font-weight: 600; } .bad .kind { color: var(--bad); } .look .kind { color: var(--look); } .info .kind { color: var(--muted); }
.where, .none { color: var(--muted); font-size: 13px; }
.share { font-size: 20px; font-weight: 600; line-height: 1.2; font-variant-numeric: tabular-nums; }
.share ~ p { color: var(--muted); font-size: 13px; }
.bar { background: var(--grid); border-radius: 3px; height: 6px; margin: 5px 0; max-width: 130px; }
.bar i { display: block; height: 6px; border-radius: 3px; background: var(--wait); }
td ul { list-style: none; padding: 0; } td li + li { margin-top: 5px; }
.ceiling { font-weight: 600; margin-top: 6px; }
.clean { color: var(--good); margin-top: 4px; }
.machine { display: grid; grid-template-columns: max-content 1fr; gap: 3px 18px; margin-top: 8px; font-size: 14px; }
.machine dt { color: var(--muted); } .machine dd { margin: 0; overflow-wrap: anywhere; }
footer { color: var(--muted); font-size: 13px; display: grid; gap: 4px; padding: 0 4px; overflow-wrap: anywhere; }
@media (max-width: 640px) {
  main { padding: 12px 8px 32px; gap: 12px; }
  .verdict, figure, .card { padding: 14px 16px; } figure { padding: 14px 8px; } figcaption { padding: 0 8px; }
  h1 { font-size: 25px; } .says { font-size: 16px; }
  .figures { grid-template-columns: 1fr 1fr; } .figures div { padding: 10px 16px; } .figures dd { font-size: 21px; }
  .figures div:last-child:nth-child(odd) { grid-column: 1 / -1; }
  .wide { display: none; } .phone { display: block; }
  thead { display: none; } table, tbody, tr, td { display: block; width: auto !important; }
  td { border: 0; padding: 4px 0; } tr { border-bottom: 1px solid var(--grid); padding: 10px 0; } tr:last-child { border: 0; }
  td:not(:first-child)::before { content: attr(data-label); display: block; color: var(--muted); font-size: 12px; }
}
@media print {
  body { background: #fff; } main { padding: 0; max-width: none; gap: 12px; }
  .verdict, figure, .card, .figures { break-inside: avoid; border: 1px solid var(--grid); }
  .wide { display: block; } .phone { display: none; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
}
"""

// Draws a dashboard with Grafana's own components: its panel frame, numbers, bars, tables, lines, its units, mappings,
// thresholds, overrides and transformations. What it does not have of Grafana are the panel plugins, which are in no
// package; a state timeline is drawn as steps.
import {
  applyFieldOverrides,
  createTheme,
  DataFrame,
  dateTime,
  FieldConfigOptionsRegistry,
  FieldType,
  getDisplayValueAlignmentFactors,
  getFieldDisplayValues,
  LoadingState,
  standardTransformers,
  standardTransformersRegistry,
  toDataFrame,
  transformDataFrame,
} from '@grafana/data';
import {
  BarGauge,
  BigValue,
  GlobalStyles,
  PanelChrome,
  Table,
  ThemeContext,
  TimeSeries,
} from '@grafana/ui';
import React from 'react';
import { createRoot } from 'react-dom/client';
import 'uplot/dist/uPlot.min.css';

type Series = { metric: Record<string, string>; value?: [number, string]; values?: Array<[number, string]> };
type Panel = any;
// results: panel id -> for each of its targets the series that Prometheus gave
declare const DRAW: { dashboard: { title: string; panels: Panel[] }; results: Record<string, Series[][]>; range: [number, number] };

const theme = createTheme({ colors: { mode: 'light' } });
const [CELL, ROW, GAP] = [60, 38, 8];
const noVariables = (text: string) => text;

standardTransformersRegistry.setInit(() =>
  [standardTransformers.mergeTransformer, standardTransformers.organizeFieldsTransformer].map(
    (t: any) => ({ id: t.id, name: t.name, transformation: t, editor: () => null })
  )
);

// What Grafana registers for a panel's options: here whatever the dashboard sets is taken as it is.
function options(panel: Panel): FieldConfigOptionsRegistry {
  const ids = new Set<string>(['unit', 'min', 'max', 'decimals', 'displayName', 'noValue', 'thresholds', 'mappings', 'links', 'color']);
  const custom = new Set<string>(['drawStyle', 'lineInterpolation', 'lineWidth', 'fillOpacity', ...Object.keys(panel.fieldConfig?.defaults?.custom ?? {})]);
  for (const override of panel.fieldConfig?.overrides ?? []) {
    for (const { id } of override.properties) {
      id.startsWith('custom.') ? custom.add(id.slice(7)) : ids.add(id);
    }
  }
  const item = (id: string, isCustom: boolean): any => ({
    id: isCustom ? `custom.${id}` : id, path: id, name: id, isCustom,
    process: (value: unknown) => value, shouldApply: () => true, override: () => null, editor: () => null, settings: {},
  });
  return new FieldConfigOptionsRegistry(() => [...[...ids].map((i) => item(i, false)), ...[...custom].map((i) => item(i, true))]);
}

function legend(format: string, labels: Record<string, string>): string {
  return format ? format.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, name) => labels[name] ?? '') : '';
}

function tableFrame(ref: string, several: boolean, found: Series[]): DataFrame {
  const labels = [...new Set(found.flatMap((s) => Object.keys(s.metric)))].sort();
  return toDataFrame({
    refId: ref,
    fields: [
      { name: 'Time', type: FieldType.time, values: found.map((s) => s.value![0] * 1000) },
      ...labels.map((name) => ({ name, type: FieldType.string, values: found.map((s) => s.metric[name] ?? '') })),
      { name: several ? `Value #${ref}` : 'Value', type: FieldType.number, values: found.map((s) => Number(s.value![1])) },
    ],
  });
}

function seriesFrames(target: any, found: Series[]): DataFrame[] {
  return found.map((s) => {
    const points = s.values ?? [s.value!];
    const name = legend(target.legendFormat, s.metric);
    return toDataFrame({
      refId: target.refId,
      name,
      fields: [
        { name: 'Time', type: FieldType.time, config: {}, values: points.map(([t]) => t * 1000) },
        { name: 'Value', type: FieldType.number, labels: s.metric, config: name ? { displayNameFromDS: name } : {},
          values: points.map(([, v]) => Number(v)) },
      ],
    });
  });
}

// What the panel plugins for lines have as their defaults.
const LINES: Record<string, unknown> = {
  timeseries: { color: { mode: 'palette-classic' }, custom: { drawStyle: 'line' } },
  'state-timeline': { color: { mode: 'palette-classic' }, custom: { drawStyle: 'line', lineInterpolation: 'stepAfter' } },
};

function prepared(panel: Panel, data: DataFrame[]): DataFrame[] {
  const own = panel.fieldConfig ?? { defaults: {}, overrides: [] };
  const more = LINES[panel.type] as any;
  const steps = panel.type === 'state-timeline' ? { lineWidth: 2, fillOpacity: 0 } : {};
  const defaults = more ? { ...own.defaults, color: more.color, custom: { ...more.custom, ...own.defaults.custom, ...steps } } : own.defaults;
  return applyFieldOverrides({
    data, fieldConfig: { ...own, defaults }, replaceVariables: noVariables, theme,
    timeZone: 'utc', fieldConfigRegistry: options(panel),
  });
}

async function frames(panel: Panel): Promise<DataFrame[]> {
  const results = DRAW.results[panel.id] ?? [];
  const targets: any[] = panel.targets ?? [];
  if (panel.type !== 'table') {
    return prepared(panel, targets.flatMap((target, index) => seriesFrames(target, results[index] ?? [])));
  }
  const raw = targets.map((target, index) => tableFrame(target.refId, targets.length > 1, results[index] ?? []));
  const configs = (panel.transformations ?? []) as any[];
  const joined = await new Promise<DataFrame[]>((resolve) => transformDataFrame(configs, raw).subscribe(resolve));
  return prepared(panel, joined);
}

function values(panel: Panel, data: DataFrame[]) {
  return getFieldDisplayValues({
    data, fieldConfig: panel.fieldConfig, reduceOptions: panel.options.reduceOptions ?? { calcs: ['lastNotNull'] },
    replaceVariables: noVariables, theme, timeZone: 'utc',
  });
}

function Body({ panel, data, width, height }: { panel: Panel; data: DataFrame[]; width: number; height: number }) {
  const empty = data.every((frame) => frame.length === 0);
  if (data.length === 0 || empty) {
    return <div data-empty={panel.title}>{panel.fieldConfig?.defaults?.noValue ?? 'No data'}</div>;
  }
  if (panel.type === 'stat') {
    const [first] = values(panel, data);
    return <BigValue value={first.display} theme={theme} width={width} height={height} colorMode={panel.options.colorMode}
      graphMode={panel.options.graphMode} textMode={panel.options.textMode} justifyMode={'auto' as any} />;
  }
  if (panel.type === 'bargauge') {
    const all = values(panel, data);
    const aligned = getDisplayValueAlignmentFactors(all);
    const each = Math.max(18, Math.floor((height - 4 * all.length) / all.length));
    return <div>{all.map((one, index) => (
      <BarGauge key={index} value={one.display} field={one.field} theme={theme} width={width} height={each} itemSpacing={8} alignmentFactors={aligned}
        orientation={'horizontal' as any} displayMode={panel.options.displayMode} display={one.view?.getFieldDisplayProcessor(one.colIndex!)} />
    ))}</div>;
  }
  if (panel.type === 'table') {
    const sort = (panel.options.sortBy ?? []).map((s: any) => ({ displayName: s.displayName, desc: !!s.desc }));
    return <Table data={data[0]} width={width} height={height} initialSortBy={sort} cellHeight={panel.options.cellHeight} ariaLabel={panel.title} />;
  }
  if (panel.type === 'timeseries' || panel.type === 'state-timeline') {
    data.forEach((frame, index) => frame.fields.forEach((field) => (field.state = { ...field.state, seriesIndex: index })));
    const [from, to] = [dateTime(DRAW.range[0] * 1000), dateTime(DRAW.range[1] * 1000)];
    const shown = { displayMode: 'list', placement: 'bottom', showLegend: data.length <= 16, calcs: [] } as any;
    return (
      <TimeSeries width={width} height={height} frames={data} timeZone="utc" legend={shown}
        timeRange={{ from, to, raw: { from, to } }} options={{ tooltip: { mode: 'none', sort: 'none' }, legend: shown } as any}>
        {() => <></>}
      </TimeSeries>
    );
  }
  return <div>{panel.type}</div>;
}

function Board({ drawn }: { drawn: Array<[Panel, DataFrame[]]> }) {
  return (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <div style={{ position: 'relative', width: 24 * CELL, background: theme.colors.background.canvas }}>
        {drawn.map(([panel, data]) => {
          const at = panel.gridPos;
          const style: React.CSSProperties = { position: 'absolute', left: at.x * CELL, top: at.y * ROW };
          const [width, height] = [at.w * CELL - GAP, at.h * ROW - GAP];
          return (
            <div key={panel.id} style={style} data-panel={panel.title}>
              {panel.type === 'row' ? <h4 style={{ padding: 6 }}>{panel.title}</h4> : (
                <PanelChrome title={panel.title} description={panel.description} width={width} height={height} loadingState={LoadingState.Done}>
                  {(w, h) => <Body panel={panel} data={data} width={w} height={h} />}
                </PanelChrome>
              )}
            </div>
          );
        })}
      </div>
    </ThemeContext.Provider>
  );
}

async function main() {
  const drawn: Array<[Panel, DataFrame[]]> = [];
  for (const panel of DRAW.dashboard.panels) {
    drawn.push([panel, panel.type === 'row' ? [] : await frames(panel)]);
  }
  createRoot(document.getElementById('root')!).render(<Board drawn={drawn} />);
  document.body.dataset.done = 'yes';
}
window.addEventListener('error', (event) => { document.body.dataset.error = String(event.message); });
main().catch((error) => { document.body.dataset.error = String(error.stack); });

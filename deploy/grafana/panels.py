"""The kinds of panels that gpu-topo's dashboards are made of, on Grafana's own typed builders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

DATASOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
GREEN, ORANGE, RED, BLUE = "green", "orange", "red", "blue"
Steps = Sequence[tuple[float | None, str]]  # from which value on which colour; None: from below everything
GOOD_IS_ZERO: Steps = ((None, GREEN), (1, RED))
SOME_CAN_WAIT: Steps = ((None, GREEN), (1, ORANGE))
SEVERITIES = {"critical": RED, "warning": ORANGE, "info": BLUE}


class Column(NamedTuple):
    """A column of a table: the label, or the letter of the query, its heading, and how it is shown."""

    source: str
    title: str
    unit: str = ""
    colours: Mapping[str, str] | None = None  # value -> colour of the cell
    link: str = ""
    width: int = 0


def _query(expr: str, ref: str = "A", legend: str = "") -> prometheus.Dataquery:
    return prometheus.Dataquery().datasource(DATASOURCE).ref_id(ref).expr(expr).legend_format(legend)


def _steps(steps: Steps) -> dashboard.ThresholdsConfig:
    made = [model.Threshold(value=value, color=color) for value, color in steps]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(made)


def _by_thresholds() -> dashboard.FieldColor:
    return dashboard.FieldColor().mode(model.FieldColorModeId.THRESHOLDS)


def _words(words: Mapping[str, tuple[str, str]]) -> list[model.ValueMapping]:
    shown = {
        value: model.ValueMappingResult(text=text, color=color, index=index)
        for index, (value, (text, color)) in enumerate(words.items())
    }
    return [model.ValueMap(options=shown)]


def row(title: str) -> dashboard.Row:
    """A heading."""
    return dashboard.Row(title)


def number(title: str, text: str, expr: str, *, unit: str = "none", steps: Steps = ((None, BLUE),)) -> stat.Panel:
    """One number, coloured by thresholds."""
    return (
        stat.Panel()
        .title(title)
        .description(text)
        .datasource(DATASOURCE)
        .with_target(_query(expr).instant())
        .unit(unit)
        .thresholds(_steps(steps))
        .color_scheme(_by_thresholds())
        .color_mode(common_model.BigValueColorMode.VALUE)
        .graph_mode(common_model.BigValueGraphMode.NONE)
        .text_mode(common_model.BigValueTextMode.VALUE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .height(4)
        .span(4)
    )


def lines(
    title: str,
    text: str,
    expr: str,
    legend: str,
    *,
    unit: str,
    span: int = 12,
    colours: Mapping[str, str] | None = None,
) -> timeseries.Panel:
    """Values over time. colours: of the lines that have these names, where a colour means something."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(text)
        .datasource(DATASOURCE)
        .with_target(_query(expr, legend=legend).range())
        .unit(unit)
        .min(0)
        .line_width(1)
        .fill_opacity(0)
        .show_points(common_model.VisibilityMode.NEVER)
        .legend(
            common.VizLegendOptions()
            .show_legend(True)
            .display_mode(common_model.LegendDisplayMode.LIST)
            .placement(common_model.LegendPlacement.BOTTOM)
        )
        .tooltip(
            common.VizTooltipOptions()
            .mode(common_model.TooltipDisplayMode.MULTI)
            .sort(common_model.SortOrder.DESCENDING)
        )
        .height(8)
        .span(span)
    )
    for name, colour in (colours or {}).items():
        fixed = {"mode": "fixed", "fixedColor": colour}
        panel = panel.override_by_name(name, [model.DynamicConfigValue("color", fixed)])
    return panel


def states(
    title: str, text: str, expr: str, legend: str, words: Mapping[str, tuple[str, str]], *, span: int = 12
) -> statetimeline.Panel:
    """Which of a few states each thing was in, over time."""
    return (
        statetimeline.Panel()
        .title(title)
        .description(text)
        .datasource(DATASOURCE)
        .with_target(_query(expr, legend=legend).range())
        .mappings(_words(words))
        .thresholds(_steps([(None, GREEN)]))
        .color_scheme(_by_thresholds())
        .show_value(common_model.VisibilityMode.NEVER)
        .merge_values(True)
        .row_height(0.8)
        .line_width(0)
        .fill_opacity(80)
        .legend(common.VizLegendOptions().show_legend(False).display_mode(common_model.LegendDisplayMode.HIDDEN))
        .height(8)
        .span(span)
    )


def bars(
    title: str, text: str, expr: str, legend: str, *, unit: str, most: float | None = None, steps: Steps, span: int = 12
) -> bargauge.Panel:
    """One bar for each thing, coloured by thresholds."""
    panel = (
        bargauge.Panel()
        .title(title)
        .description(text)
        .datasource(DATASOURCE)
        .with_target(_query(expr, legend=legend).instant())
        .unit(unit)
        .min(0)
        .thresholds(_steps(steps))
        .color_scheme(_by_thresholds())
        .orientation(common_model.VizOrientation.HORIZONTAL)
        .display_mode(common_model.BarGaugeDisplayMode.BASIC)
        .show_unfilled(True)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .height(8)
        .span(span)
    )
    return panel if most is None else panel.max(most)


def rows(
    title: str,
    text: str,
    queries: Mapping[str, str],
    columns: Sequence[Column],
    *,
    empty: str = "",
    sort: str = "",
    descending: bool = False,
    height: int = 8,
    span: int = 24,
) -> table.Panel:
    """A table: instant queries joined by the labels that they share, one column for each label or query named.

    empty is what stands for an empty table; Grafana also puts it into each empty cell.
    """
    panel = (
        table.Panel()
        .title(title)
        .description(text)
        .datasource(DATASOURCE)
        .cell_height(common_model.TableCellHeight.SM)
        .with_transformation(model.DataTransformerConfig(id_val="merge", options={}))
        .height(height)
        .span(span)
    )
    if empty:
        panel = panel.no_value(empty)
    for ref, expr in queries.items():
        panel = panel.with_target(_query(expr, ref).instant().format(PromQueryFormat.TABLE))
    fields = {column.title: _field(column, queries) for column in columns}
    hidden = {"Time", *(_value(ref, queries) for ref in queries)} - set(fields.values())
    panel = panel.with_transformation(
        model.DataTransformerConfig(
            id_val="organize",
            options={
                "excludeByName": dict.fromkeys(sorted(hidden), True),
                "indexByName": {fields[column.title]: index for index, column in enumerate(columns)},
                "renameByName": {fields[column.title]: column.title for column in columns},
            },
        )
    )
    for column in columns:
        properties = _properties(column)
        if properties:
            panel = panel.override_by_name(column.title, properties)
    if sort:
        panel = panel.sort_by([common.TableSortByFieldState().display_name(sort).desc(descending)])
    return panel


def counted(
    title: str, text: str, expr: str, columns: Sequence[Column], of: str, *, empty: str = "", span: int = 8
) -> table.Panel:
    """A table of how many of something there are for each label, the most first."""
    count = Column("A", of, width=90)
    return rows(title, text, {"A": expr}, [*columns, count], empty=empty, sort=of, descending=True, span=span)


def _field(column: Column, queries: Mapping[str, str]) -> str:
    return _value(column.source, queries) if column.source in queries else column.source


def _value(ref: str, queries: Mapping[str, str]) -> str:
    """How Grafana calls the value of a query in a table: by its letter where there are several."""
    return "Value" if len(queries) == 1 else f"Value #{ref}"


def _properties(column: Column) -> list[model.DynamicConfigValue]:
    found = []
    if column.unit:
        found.append(model.DynamicConfigValue("unit", column.unit))
    if column.width:
        found.append(model.DynamicConfigValue("custom.width", column.width))
    if column.colours:
        words = {value: {"color": color, "index": index} for index, (value, color) in enumerate(column.colours.items())}
        found.append(model.DynamicConfigValue("mappings", [{"type": "value", "options": words}]))
        found.append(model.DynamicConfigValue("custom.cellOptions", {"type": "color-text"}))
    if column.link:
        found.append(model.DynamicConfigValue("links", [{"title": column.title, "url": column.link}]))
    return found


def board(uid: str, title: str, text: str, variables: Sequence[dashboard.QueryVariable]) -> dashboard.Dashboard:
    """An empty dashboard with a choice of the data source and of what else it is about."""
    made = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(text)
        .tags(["gpu-topo"])
        .timezone("browser")
        .time("now-6h", "now")
        .refresh("30s")
        .readonly()
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .link(
            dashboard.DashboardLink("gpu-topo")
            .type(model.DashboardLinkType.DASHBOARDS)
            .tags(["gpu-topo"])
            .include_vars(True)
            .keep_time(True)
            .as_dropdown(True)
        )
    )
    for variable in variables:
        made = made.with_variable(variable)
    return made


def variable(name: str, label: str, query: str, *, several: bool = False) -> dashboard.QueryVariable:
    """A choice among the values of a label; several: any number of them, all at first."""
    made = (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query({"query": query, "refId": name})
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_ASC)
    )
    return made.multi(True).include_all(True).all_value(".+") if several else made
